"""The data of the server's page from real folders: live, finished and damaged studies, and no rows."""

from __future__ import annotations

import numpy as np
import pytest
from federations import Federation, small_study, wait_for
from page_visits import visitor

from dpadmm.federation.server.process import begin
from dpadmm.federation.server.status import status_of
from dpadmm.federation.web.metrics import metrics_text
from dpadmm.federation.web.server_data import MAX_POINTS, Cached, ServerData, StudyReader, thinned


def test_a_long_run_is_thinned_for_pages_and_keeps_its_extremes():
    rng = np.random.default_rng(1)
    values = list(rng.exponential(size=30_001))
    points = thinned(values)
    assert len(points) <= MAX_POINTS
    assert points == sorted(points)
    assert all(values[k - 1] == value for k, value in points)
    assert {min(values), max(values)} <= {value for _, value in points}
    assert points[-1][0] == len(values)


def test_a_cached_value_is_computed_once_and_survives_an_error():
    calls, broken = [], [False]

    def compute():
        calls.append(1)
        if broken[0]:
            raise OSError("full disk")
        return len(calls)

    slow, fast = Cached(60.0, compute, 0), Cached(0.0, compute, 0)
    assert [slow.get(), slow.get(), len(calls)] == [1, 1, 1]
    assert fast.get() == 2
    broken[0] = True
    assert (fast.get(), len(calls)) == (2, 3)


def keys_of(value):
    if isinstance(value, dict):
        for key, entry in value.items():
            yield key
            yield from keys_of(entry)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from keys_of(item)


def test_a_study_is_shown_while_it_runs_and_after_it(tmp_path):
    """The page of ``server start`` has the same curve, events and budget as the process that runs the study."""
    study = small_study(300)
    with Federation(tmp_path, study) as all:
        data = ServerData(all.authority)
        assert data.snapshot()["study"] is None
        assert [site["state"] for site in data.snapshot()["sites"]] == ["unknown"] * 3
        keeper = all.keep_broker()
        all.accept()
        all.start()
        data = ServerData(all.authority)
        wait_for(lambda: [site["state"] for site in data.snapshot()["sites"]] == ["connected"] * 3)
        begin(all.authority, study, ["a", "b", "c"])
        all.serve()
        reader, seen = StudyReader(all.authority, all.journal), set()

        def finished():
            status = reader.read()
            assert status is not None
            if status["served"]:
                seen.add(status["rounds_done"])
                assert len(status["changes"]) >= status["rounds_done"]  # the journal may be ahead of the status file
            return status["state"] == "finished"

        wait_for(finished)
        assert all.finished() == 0
        assert any(0 < done < 300 for done in seen), "it was read while it ran"
        whole = status_of(all.authority, all.journal)
        wait_for(lambda: not reader.read()["served"])
        shown = reader.read()
        assert [value for _, value in shown["changes"]] == pytest.approx(whole["changes"])
        assert shown["events"] == whole["events"]
        wait_for(lambda: data.snapshot()["studies"][0]["state"] == "finished")
        snapshot = data.snapshot()
        (listed,) = snapshot["studies"]
        assert listed["epsilon"] == pytest.approx(snapshot["study"]["sites"][0]["epsilon"])
        assert listed["planned_epsilon"] == pytest.approx(3.0, rel=1e-3)
        assert not {"rows", "n_rows", "rows_per_person"} & set(keys_of(snapshot))
        assert "dpadmm_rounds_done" not in metrics_text(data.samples()).decode()  # no process runs the study
        lines = (all.folder / "broker.txt").read_text()
        assert "http://127.0.0.1:" in lines
        assert keeper is not None


def test_metrics_of_server_and_studies_have_no_line_twice(tmp_path):
    with Federation(tmp_path, small_study(5_000, deadline=5.0)) as all:
        all.keep_broker()
        all.accept()
        all.start()
        all.begin()
        all.serve()
        all.after_round(3)
        data = ServerData(all.authority)

        def lines():
            return [line for line in metrics_text(data.samples()).decode().splitlines() if line[0] != "#"]

        wait_for(lambda: any(line.startswith("dpadmm_rounds_done{") for line in lines()))
        names = [line.rpartition(" ")[0] for line in lines()]
        assert len(names) == len(set(names))
        assert "dpadmm_connected" in names
        assert 'dpadmm_site_silent{site="a"}' in names
        assert f'dpadmm_site_silent{{site="a",study="{all.study.hash[:16]}"}}' in names


def test_the_page_of_a_run_without_server_start_shows_its_end(tmp_path):
    with Federation(tmp_path, small_study(30)) as all:
        all.accept()
        all.begin()
        all.start()
        all.serve("--page", "--page-port", "0")
        wait_for(lambda: (tmp_path / "aggregator.txt").exists() and "login#" in all.output)
        get, states = visitor(all.output), []

        def ended():
            try:
                states.append(get("/snapshot")["study"]["state"])
            except OSError:
                return True
            return False

        wait_for(ended)
        assert states[-1] == "finished"
        assert all.finished() == 0
