"""What a run leaves: the model, its privacy statement and the transcript, from the journal alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.errors import StudyError
from dpadmm.federation.journal import Journal
from dpadmm.files import atomic_file
from dpadmm.privacy.releases import Release
from dpadmm.privacy.report import PrivacyReport
from dpadmm.privacy.statement import EXACT, AgentGroup, StatedRelease, Statement
from dpadmm.study import Study
from dpadmm.training import Averages, RoundView
from dpadmm.version import VERSION


@dataclass(frozen=True)
class FederatedResult:
    """A run across sites; what ``model_of`` makes a model from. All of it is public."""

    study: Study
    weights: Floats
    history: Floats
    privacy: PrivacyReport
    statement: Statement
    rounds_done: int


def result_of(journal: Journal) -> FederatedResult:
    """The result of the rounds that were closed.

    Every site that was ever here is charged for all planned rounds: that an answer did not arrive does not
    mean that it was not given. ``released`` is what arrived; what a site really spent is in its ledger.
    """
    study, sites = journal.study, journal.sizes()
    if not journal.rounds_done:
        raise StudyError("no round is closed yet: there is nothing to export")
    rounds, answered = study.settings.n_rounds, journal.answered()
    averages, done = Averages(), 0
    history = [np.zeros(study.shape)]
    for done, consensus in enumerate(journal.consensus(), 1):
        averages(RoundView(done, rounds, consensus, consensus, 0.0))
        history.append(consensus)
    names = [name for name in journal.members if name in sites]
    z = study.noise_multiplier
    members: dict[tuple[int, int], dict[str, int]] = {}
    for name in names:
        n_rows, k = sites[name]
        members.setdefault((k, answered.get(name, 0)), {})[name] = n_rows
    groups = tuple(
        AgentGroup(rows, k, (StatedRelease("mean gradient", z, rounds, released),))
        for (k, released), rows in members.items()
    )
    method, delta = study.settings.method, float(study.settings.delta)
    planned = np.full(len(names), rounds)
    privacy = PrivacyReport(
        [Release(z) for _ in names],
        np.array([answered.get(name, 0) for name in names]),
        planned,
        delta,
        method,
        ended_by_result=True,
        exact_noise=True,
    )
    return FederatedResult(
        study=study,
        weights=averages.model(study.settings.average, history[-1]),
        history=np.array(history),
        privacy=privacy,
        statement=Statement(study.name, study.hash, method, EXACT, delta, groups, VERSION),
        rounds_done=done,
    )


def write_transcript(journal: Journal, path: Path) -> None:
    """All that was said, as NumPy arrays without code: consensus (t + 1, d, p), and uploads one by one."""
    study, uploads = journal.study, list(journal.uploads())
    received = [each for _, each in uploads]
    arrays = {
        "study": np.array(study.hash),
        "consensus": np.array([np.zeros(study.shape), *journal.consensus()]),
        "upload": np.array([each.values for each in received]).reshape(-1, *study.shape),
        "site": np.array([each.site for each in received]),
        "round": np.array([each.round for each in received], dtype=np.int64),
        "entered": np.array([entered for entered, _ in uploads], dtype=np.int64),
    }
    with atomic_file(path) as out:
        np.savez_compressed(out, allow_pickle=False, **arrays)
