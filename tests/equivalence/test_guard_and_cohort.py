"""A deployed agent and an agent of a simulated cohort send identical uploads for the same noise."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import LOSS_CASES, coded
from cohorts import cohort
from guards import private
from looping import case
from scipy.sparse import csr_array

from dpadmm import kernels
from dpadmm.data.schema import Label, Plain, Schema
from dpadmm.engine.noise import ExactNoise
from dpadmm.losses import LOSSES, Logistic, Loss, Softmax, Squared
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import CONCRETE_METHODS, Round, RoundResult
from dpadmm.parameters.fields import parameters
from dpadmm.queries.newton import LOSSES as PAIRED
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.sites.agent import Agent
from dpadmm.studies.settings import nest
from dpadmm.studies.study import Study
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import Draw
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.policy import Policy

SIZES, D, ROUNDS = (7, 40, 300), 5, 6
CLASSES: dict[str, Any] = {
    "binary": lambda p: (-1, 1),
    "multiclass": range,
    "regression": lambda p: None,
    "count": lambda p: None,
}


def seeded(agent: int, round: int) -> Draw:
    """Return integers that are a function of agent and round."""

    def draw(scale: int, count: int) -> Integers:
        return np.rint(scale * np.random.default_rng([agent, round]).normal(size=count)).astype(np.int64)

    return draw


def study_for(loss: Loss, method: str, *, allow_missed_rounds: bool) -> Study:
    own: dict[str, Any] = {
        f"loss.{parameter.name}": getattr(loss, parameter.name) for parameter in parameters(type(loss))
    }
    own |= {"method.learning_rate": 0.5} if method == "dp_sgd" else {}
    classes = CLASSES.get(loss.task, lambda p: None)(loss.n_outputs)
    rows: dict[str, Any] = {
        "features": tuple(f"x{i}" for i in range(D)),
        "classes": None if classes is None else tuple(classes),
    }
    if loss.task == "count":  # with a constant column, and with times if there are intervals
        times = (*(loss.cuts), 1.0) if loss.cuts else None  # type: ignore[attr-defined]
        label = Label("y", exposure="t", times=times) if times else Label("y", bounds=(0, 1))
        rows = {"schema": Schema(tuple(Plain(f"x{i}") for i in range(D - 1)), row_norm=1.0), "label": label}
        own["intercept"] = True
    return Study(
        name="equal",
        **rows,
        training=nest(
            {
                "method": method,
                "loss": loss.name,
                "n_rounds": ROUNDS,
                "noise_multiplier": 3.0,
                **own,
            }
        ),
        provenance=dict.fromkeys(own.keys() - {"intercept"}, "assumed"),
        allow_missed_rounds=allow_missed_rounds,
    )


def rows_for(loss: Loss, storage: Any, weighted: bool) -> Rows:
    rows = cohort(loss, sizes=SIZES, d=D)
    weights = np.random.default_rng(2).choice([0.0, 1e-9, 0.3, 1.0], size=len(rows.labels)) if weighted else None
    return make_rows(storage(rows.features[rows.order]), rows.labels, offsets=rows.offsets, row_weights=weights)


def cohorts_uploads(study: Study, rows: Rows, mask: np.ndarray) -> list[Floats]:
    """Return all uploads of a cohort by round, with injected noise."""
    method = study.training.build(study.problem, rows, np.full(len(SIZES), ROUNDS))
    state, consensus, output = method.init(study.problem, rows), method.start(study.shape), []
    uploads = np.zeros((len(SIZES), *study.shape))
    for k in range(1, ROUNDS + 1):
        active = np.flatnonzero(mask[k - 1])
        now = Round(k, study.problem, rows, consensus, ExactNoise(seeded), active)
        state, sent = method.step(state, now)
        uploads = sent if uploads.shape != sent.shape else uploads
        uploads[active] = sent[active]
        output.append(uploads.copy())
        consensus = method.aggregate(RoundResult(uploads, consensus, k, study.problem, rows.n_rows, active))
    return output


EVERYTHING = list(product(CONCRETE_METHODS, ["all", "some"], [np.asarray, csr_array, coded]))
"""Methods, who takes part, and how rows are stored."""


def test_guards_and_cohort_send_identical_uploads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All combinations for losses with one output, several outputs and clipping; the main ones for all losses."""
    for loss in LOSS_CASES:
        thoroughly = loss in (Logistic(), Softmax(n_outputs=3), Squared(gradient_bound=2.0))
        for method, plan, storage in EVERYTHING:
            if method == "newton" and loss.name not in PAIRED:
                continue
            if method != "newton" and getattr(loss, "cuts", ()):  # hazards per interval
                continue
            if thoroughly or (plan, storage) == ("some", csr_array):
                with case(loss, method, plan, storage), pytest.MonkeyPatch.context() as monkeypatch:
                    check_same_bits(loss, method, plan, storage, tmp_path_factory.mktemp("case"), monkeypatch)


def test_guards_and_cohort_send_identical_uploads_with_weights(tmp_path_factory: pytest.TempPathFactory) -> None:
    for loss, method in product(LOSS_CASES, ("pgd", "dp_admm", "newton")):
        if loss.name in PAIRED if method == "newton" else not getattr(loss, "cuts", ()):
            for storage in (np.asarray, csr_array, coded) if isinstance(loss, Logistic) else (csr_array,):
                with case(loss, method, storage), pytest.MonkeyPatch.context() as monkeypatch:
                    folder = tmp_path_factory.mktemp("case")
                    check_same_bits(loss, method, "some", storage, folder, monkeypatch, weighted=True)


def check_same_bits(
    loss: Loss,
    method: str,
    plan: str,
    storage: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    weighted: bool = False,
) -> None:
    study, rows = study_for(loss, method, allow_missed_rounds=plan == "some"), rows_for(loss, storage, weighted)
    mask = np.ones((ROUNDS, len(SIZES)), bool)
    if plan == "some":
        mask[1, 0] = mask[3, 1] = mask[2, 2] = mask[3, 2] = False
    expected = cohorts_uploads(study, rows, mask)

    turn = [0, 0]
    monkeypatch.setattr(exact_noise, "discrete_gaussian", lambda scale, count: seeded(*turn)(scale, count))
    policy = Policy(1e3, 1e-5, frozenset({study.training.method.name}), frozenset(LOSSES), ROUNDS, 2)
    whole = study.method(*SIZES)
    consensus, uploads = whole.start(study.shape), np.zeros((len(SIZES), *study.shape))
    with ExitStack() as held:
        guards = []
        for i in range(len(SIZES)):
            alone = rows.agent(i)
            own = private(alone.features[alone.order], alone.labels, row_weights=alone.row_weights)
            ledger = held.enter_context(Ledger.open(tmp_path / str(i), cap=policy.cap, create=True))
            guards.append(Guard(policy, ledger, lambda study, own=own: own))  # type: ignore[misc]
        agents = [Agent(guard, study) for guard in guards]
        for k in range(1, ROUNDS + 1):
            active = np.flatnonzero(mask[k - 1])
            uploads = np.zeros_like(expected[k - 1]) if uploads.shape != expected[k - 1].shape else uploads
            for i in active.tolist():
                turn[:] = [i, k]
                if k == 5:  # as after a crash: the state is restored from the transcript
                    agents[i] = Agent(guards[i], study)
                uploads[i] = agents[i].step(k, consensus)
                turn[:] = [99, 99]  # fresh noise in the repeated reply would be visible
                assert np.array_equal(agents[i].step(k, consensus), uploads[i])
            assert np.array_equal(uploads, expected[k - 1])
            consensus = whole.aggregate(RoundResult(uploads, consensus, k, study.problem, rows.n_rows, active))


def test_guards_and_cohort_send_identical_uploads_for_large_agents(tmp_path_factory: pytest.TempPathFactory) -> None:
    for small, storage in product([0, 250], [np.asarray, csr_array, coded]):
        with case(small, storage), pytest.MonkeyPatch.context() as monkeypatch:
            tmp_path = tmp_path_factory.mktemp("case")
            monkeypatch.setattr(kernels, "MAX_NUMPY_ENTRIES", small)
            for method, weighted in (("dp_admm", True), ("pgd", False)):
                folder = tmp_path / method
                check_same_bits(Logistic(), method, "some", storage, folder, monkeypatch, weighted=weighted)
