"""Statistics and evaluations across sites: messages, guards and ledgers, with plain and secure aggregation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Federation, small_study
from in_process import InProcess
from looping import case
from masked import LOG, key

from conftest import Cli
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.data.schema import Boolean, Category, Label, Number, Schema
from dpadmm.errors import RefusalError, StudyError
from dpadmm.federation.local import with_keys
from dpadmm.federation.server.coordinator import run_rounds
from dpadmm.federation.server.journal import FederatedResult, Journal, result_of, write_transcript
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.federation.site.responder import Responder
from dpadmm.methods import Auto, EvaluationRelease, StatisticsRelease
from dpadmm.models.description import description_of
from dpadmm.models.evaluate import auc
from dpadmm.models.private_evaluation import private_evaluation_of
from dpadmm.sites.site import read_site
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger, read_ledger
from dpadmm.trusted.masking import public_key

NAMES, N = ("a", "b", "c", "d"), 300
COLUMNS = (Number("age", (0.0, 100.0)), Category("ward", ("x", "y")))
SITE = """
format = "dpadmm-site/2"
ledger = "ledger"
[data]
table = "t.csv"
[person]
column = "who"
rows = 1
[limits]
epsilon = 50.0
delta = 1e-5
methods = {methods}
losses = ["logistic"]
max_rounds = 5
min_rows = 10
[secure_aggregation]
allow = true
epsilon_if_others_collude = 90.0
min_honest_sites = 2
min_withstood = 1
"""


def statistics(**more: Any) -> Study:
    method = StatisticsRelease(tables=(("ward", "ill"),), bins=5)
    schema = Schema((*COLUMNS, Boolean("ill")))
    return Study(name="counts", schema=schema, training=Training(method=method, epsilon=4.0, delta=1e-5, **more))


def evaluation(**more: Any) -> Study:
    method = EvaluationRelease(weights=(12.0, 0.0, 0.0, 0.0, 0.0))
    training = Training(loss="logistic", method=method, epsilon=4.0, delta=1e-5, intercept=True, **more)
    label = Label("ill", classes=("no", "yes"))
    return Study(name="how good", schema=Schema(COLUMNS), label=label, training=training)


def masked(study: Study) -> Study:
    roster = tuple(RosterEntry(name, public_key(key(name)).hex()) for name in NAMES)
    training = study.training.with_changes(aggregation="secure", min_honest_sites=3)
    return replace(study, training=training, max_rows_per_site=500, roster=roster)


class Sites:
    """Sites whose tables have 20 rows with the id of another row, which are therefore silent."""

    def __init__(self, folder: Path, methods: str = '["statistics", "evaluation"]') -> None:
        self.folder, self.held = folder, ExitStack()
        for i, name in enumerate(NAMES):
            rng, place = np.random.default_rng(i), folder / name
            place.mkdir()
            lines = ["who,age,ward,ill"]
            for j in range(N):
                age = rng.normal(50.0, 10.0)
                ill = rng.random() < 1.0 / (1.0 + np.exp(-(age - 50.0) / 6.0))
                lines.append(f"{j % (N - 20)},{age:.1f},{rng.choice(['x', 'y'])},{'yes' if ill else 'no'}")
            (place / "t.csv").write_text("\n".join(lines) + "\n")
            (place / "site.toml").write_text(SITE.format(methods=methods))

    def auc(self) -> float:
        """AUC of age among active rows."""
        cells = [line.split(",") for name in NAMES for line in self._lines(name)]
        found = auc(np.array([cell[3] == "yes" for cell in cells]), np.array([float(cell[1]) for cell in cells]))
        assert found is not None
        return found

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name / "t.csv").read_text().splitlines()[1 : N - 19]

    def start(self, study: Study) -> dict[str, Any]:
        return {name: partial(self._responder(name, study).answer, study.hash) for name in NAMES}

    def _responder(self, name: str, study: Study) -> Responder:
        site = read_site(self.folder / name / "site.toml")

        def guard() -> Any:
            from contextlib import contextmanager

            @contextmanager
            def opened() -> Iterator[Guard]:
                caps = {"cap": site.policy.cap, "collusion_cap": site.policy.collusion_cap}
                with Ledger.open(site.ledger, **caps, create=True) as ledger:
                    yield Guard(site.policy, ledger, site.open_rows, lambda _: key(name))

            return opened()

        responder = Responder(guard, site.policy.unit.rows, LOG)
        responder.open()
        self.held.callback(responder.close)
        if (refusal := responder.accept(study)) is not None:
            raise refusal
        return responder


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    with made.held:
        yield made


def run(study: Study, sites: Sites) -> FederatedResult:
    file = sites.folder / study.hash[:8] / "journal.sqlite"
    Journal.begin(file, study, NAMES)
    with sites.held, Journal.open(file) as journal:
        asyncio.run(run_rounds(coordinator_of(journal), InProcess(sites.start(study))))
        write_transcript(journal, sites.folder / "t.npz")
        return result_of(journal)


def test_statistics_count_the_rows_of_all_sites(sites: Sites) -> None:
    for study in (statistics(), masked(statistics())):
        with case(study.training.aggregation):
            result = run(study, sites)
            found = description_of(result, all_count=False)
            spread = 4.0 if study.training.min_honest_sites is None else 4.0 / study.training.min_honest_sites
            assert study.encoding is not None
            expected = 2.0 * study.noise_multiplier * study.encoding.scale * spread**0.5
            assert found.noise == pytest.approx(expected)
            assert found.released.n_rows == 4 * N
            assert found.total.value == pytest.approx(4 * (N - 20), abs=5.0 * found.total.noise_se)
            age, ill = found.columns["age"], found.columns["ill"]
            assert age.mean is not None
            assert age.mean.value == pytest.approx(50.0, abs=5.0 * age.mean.se)
            assert ill.counts[1] == pytest.approx(4 * (N - 20) / 2, abs=5.0 * ill.noise_se + 60.0)
            (crossed,) = found.tables
            np.testing.assert_allclose(crossed.counts.sum(axis=0), ill.counts, atol=1e-4)
            (group,) = result.privacy.groups
            assert [release.release.statistic for release in group.releases] == ["column_sums"]
            said = sites.folder / "report.json"
            said.write_bytes(result.privacy.to_bytes())
            read_privacy_report(said)
            json.dumps(found.to_dict(), allow_nan=False)
            for name in NAMES:
                account = read_ledger(sites.folder / name / "ledger").accounts[study.hash]
                assert account.about["method"] == "statistics"
                assert float(account.spent) == pytest.approx(study.noise_multiplier**-2.0)


def test_evaluation_across_sites_is_close_to_the_exact_values(sites: Sites) -> None:
    for study in (evaluation(), masked(evaluation())):
        with case(study.training.aggregation):
            found = private_evaluation_of(run(study, sites), all_count=False)
            told = found.metrics["auc"]
            assert told is not None
            assert told.value == pytest.approx(sites.auc(), abs=4.0 * told.noise_se + 0.01)
            assert found.counts.sum() == pytest.approx(4 * (N - 20), abs=5.0 * found.noise * 40**0.5)
            json.dumps(found.to_dict(), allow_nan=False)


def test_owners_allow_statistics_and_evaluations_by_name(tmp_path: Path) -> None:
    made = Sites(tmp_path, methods='["pgd"]')
    for study in (statistics(), evaluation()):
        with case(study.kind), made.held, pytest.raises(RefusalError, match=f"method {study.kind} .allowed: pgd"):
            made._responder("a", study)


def test_study_with_too_much_noise_stops_before_round_1(sites: Sites) -> None:
    study = replace(statistics(), training=statistics().training.with_changes(epsilon=0.1))
    with pytest.raises(StudyError, match=r"counts would have noise of ±[\d,]+ among 1,200 rows"):
        run(study, sites)
    for name in NAMES:
        assert not read_ledger(sites.folder / name / "ledger").accounts[study.hash].rounds


def test_study_with_infeasible_intervals_stops_before_round_1(tmp_path: Path) -> None:
    made, like = Sites(tmp_path, methods='["newton"]'), evaluation()
    training = Training(loss="logistic", method=Auto(inference=True), epsilon=0.1, delta=1e-5, intercept=True)
    study = Study(name="odds ratios", schema=Schema(COLUMNS), label=like.label, training=training)
    with made.held, pytest.raises(StudyError, match="too much noise to estimate the covariance of 3 columns"):
        run(study, made)
    for name in NAMES:
        assert not read_ledger(made.folder / name / "ledger").accounts[study.hash].rounds


def test_study_with_only_aborted_rounds_has_no_result(sites: Sites) -> None:
    study = statistics()
    method = study.method(1)
    with pytest.raises(StudyError, match="nothing was released: every round was aborted"):
        method.released(method.start(study.shape))  # type: ignore[attr-defined]


def test_masked_statistics_study_with_real_processes(tmp_path: Path, cli: Cli) -> None:
    columns = (Number("age", (0, 100)), Number("bmi", (10, 60)), Category("sick", ("no", "yes")))
    training = Training(
        method=StatisticsRelease(bins=4), epsilon=3.0, delta=1e-5, aggregation="secure", min_honest_sites=2
    )
    study = Study(name="small counts", schema=Schema(columns), training=training, max_rows_per_site=100)
    with Federation(tmp_path, small_study(max_rows_per_site=100, quorum=3)) as everyone:
        everyone.study = with_keys(study, everyone.sites)  # at sites that have a label for other studies
        everyone.accept()
        everyone.begin()
        everyone.start()
        everyone.all_connected()
        everyone.serve()
        assert everyone.finished() == 0
    out = tmp_path / "counts.json"
    cli("server", "export", "-o", out, "--folder", everyone.authority.folder).succeeded()
    cli("verify", tmp_path / "counts.privacy.json").succeeded()
    told = cli("describe", out).succeeded().out
    assert "small counts: 180 rows, of which about" in told
    assert "if at least 2 sites in every round are honest" in " ".join(told.split())
