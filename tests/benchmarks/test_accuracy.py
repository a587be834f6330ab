"""The accuracy suite: its runs and its page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import suite as accuracy
from benchmarks.accuracy.page import ANY_CLASSES, page
from benchmarks.accuracy.suite import CONTENDERS, REST, Line, Place
from dpadmm.errors import DataError, StudyError


def lines(contender: str, errors: list[float], *, losses: list[float] | None = None, **changes: object) -> list[Line]:
    where = {"set": "compas", "agents": 10, "epsilon": 1.0, **changes}
    pairs = zip(errors, losses or errors, strict=True)
    return [Line(contender=contender, seed=k, error=e, loss=g, **where) for k, (e, g) in enumerate(pairs, 1)]  # type: ignore[arg-type]


def test_every_method_runs_on_every_data_set_at_the_same_privacy() -> None:
    entries = accuracy.sets()
    assert len(entries) >= 14
    assert [item.n_rows for item in entries] == sorted(item.n_rows for item in entries)
    for entry in entries:
        grid = accuracy.grid(entry)
        assert [experiment.name for experiment in grid.experiments] == list(CONTENDERS)
        private = [cell.settings for cell in grid.cells() if cell.settings.method.private]
        assert {(item.epsilon, item.delta) for item in private} == {(e, 1e-5) for e in (0.3, 1.0, 3.0)}
        assert {item.seed for item in private} == set(range(1, 11))
        (optimum,) = {cell.settings.alpha for cell in grid.cells(["optimum"])}
        assert optimum == 1e-6
        relied_on = {(item.n_agents, item.min_honest_sites) for item in private if item.aggregation == "secure"}
        assert relied_on == ({(10, 5)} if entry.name == "wine" else {(10, 5), (100, 50)})
        n_agents = {item.n_agents for item in private}
        assert n_agents == ({1, 10} if entry.name == "wine" else {1, 10, 100})
    assert accuracy.grid(entries[0], splits=3).digest != accuracy.grid(entries[0]).digest


def test_data_sets_are_chosen_by_name_or_size() -> None:
    assert [data_set.name for data_set in accuracy.sets(["adult", "wine"])] == ["wine", "adult"]
    assert max(data_set.n_rows for data_set in accuracy.sets(quick=True)) <= accuracy.QUICK_ROWS
    with pytest.raises(StudyError, match="there is no data set 'adlt' in the suite; there are adult, compas"):
        accuracy.sets(["adlt"])


def test_large_tables_are_subsampled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "MOST_ROWS", 500)
    (entry,) = accuracy.sets(["correlated"])
    one, two = accuracy.load(entry), accuracy.load(entry)
    assert one.n_rows == 500
    assert np.array_equal(one.features, two.features)


def test_results_round_trip_through_their_file(tmp_path: Path) -> None:
    written = [*lines("auto", [0.25, 0.5]), *lines("optimum", [0.125], losses=[math.nan], epsilon=math.nan)]
    accuracy.write_lines(tmp_path / "lines.csv", written)
    assert repr(accuracy.read_lines(tmp_path / "lines.csv")) == repr(written)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other.csv is not a table of accuracies"):
        accuracy.read_lines(tmp_path / "other.csv")


def test_best_setting_counts_and_every_data_set_has_an_optimum() -> None:
    found = accuracy.scores(
        [
            *lines("dp_sgd_tuned", [0.4, 0.4], setting="1"),
            *lines("dp_sgd_tuned", [0.2, 0.3], setting="4"),
            *lines("optimum", [0.1, 0.1], agents=1, epsilon=math.nan),
        ]
    )
    here = found[Place("compas", 10, 1.0)]
    assert here["dp_sgd_tuned"].setting == "4"
    assert here["optimum"].error == pytest.approx(0.1)


def test_losses_to_another_method_are_measured_on_the_same_splits() -> None:
    auto_lines = lines("auto", [0.31, 0.41, 0.52], losses=[0.5, 0.5, 0.5])
    # splits differ more than methods, so only paired differences are clear
    found = accuracy.scores([*auto_lines, *lines("dp_sgd", [0.30, 0.40, 0.50], losses=[0.6, 0.6, 0.6])])
    (lost,) = accuracy.behind(found)
    assert (lost.best, lost.place) == ("dp_sgd", Place("compas", 10, 1.0))
    assert lost.gap == pytest.approx(0.04 / 3)
    assert lost.error == pytest.approx(np.std([0.01, 0.01, 0.02], ddof=1) / math.sqrt(3))
    assert accuracy.behind(found, measure="losses") == []
    ahead = accuracy.scores([*auto_lines, *lines("dp_sgd", [0.32, 0.40, 0.52])])
    assert accuracy.behind(ahead) == []
    tuned = accuracy.scores([*auto_lines, *lines("dp_sgd_tuned", [0.1, 0.1, 0.1])])
    assert accuracy.behind(tuned) == []  # it was tuned on the test rows
    assert "dp_sgd_tuned" not in REST


def test_secure_aggregation_is_reported_separately() -> None:
    shown = [*lines("auto", [0.31, 0.41]), *lines("dp_sgd", [0.40, 0.49]), *lines("optimum", [0.2, 0.2])]
    text = page([*shown, *lines("auto_secure", [0.21, 0.31])])
    assert "| 10, 1 | 36.0 ± 5.0 (0.360) | 26.0 ± 5.0 (0.260) | – |" in text
    assert "0 of 1 cells" in text  # it does not count as a better method
    assert "if all others collude, an ε of 1\n  is 2.4 with 10, 9.4 with 100 agents" in text
    every = [*shown, *(line for name in ANY_CLASSES for line in lines(name, [0.3]) if name not in ("auto", "dp_sgd"))]
    assert "| 36.0 | – | 30.0 |" in page(every)  # means do not include it
    assert "| 36.0 | 26.0 | 30.0 |" in page([*every, *lines("auto_secure", [0.26])])


def test_page_lists_losses_of_auto_and_excluded_data_sets() -> None:
    shown = [*lines("auto", [0.31, 0.41]), *lines("dp_sgd", [0.30, 0.39]), *lines("optimum", [0.2, 0.2])]
    text = page(shown, lines("opacus_curator", [0.25, 0.25]))
    assert "behind the best of the rest by more than one standard error: 1 of 1 cells" in text
    assert "| compas, 10, 1 | 36.00 | 34.50 DP-SGD | 1.50 ± 0.50 |" in text
    assert "| compas, 10, 1 | 36.0 ± 5.0 (0.360) | 25.0 ± 0.0 (0.250) | 20.0 ± 0.0 (0.200) |" in text
    assert "A curator sees all rows" in text
    assert "This is not the whole suite" in text
    assert "The hyperparameters of `auto` were tuned on adult" in text
    assert "Other libraries" not in page(shown)
