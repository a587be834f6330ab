"""All bytes that leave an agent, compared for neighbouring tables with the same noise: only uploads differ.

Noise and salt come from a seed instead of the operating system, through the real sampler. A whole study runs on a table
D and on D', where one row is replaced, with all kinds of refusals.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guards import POLICY, STUDY, D, M, consensus, guarded, memory_folder, own, rows
from looping import case
from neighbours import LIMIT, LONG, Outbound, allowed_steps, steps_between, watched
from scipy.sparse import csr_array

from dpadmm.sites.agent import Agent
from dpadmm.studies.settings import nest
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import read_ledger

WIDE = replace(POLICY, losses=frozenset({"logistic", "huber", "squared", "softmax"}), epsilon=8.0)
CLASSES = {"logistic": (-1, 1), "huber": None, "squared": None, "softmax": (0, 1, 2)}
POINTS = np.array(
    [
        [0.0, 0.0, 0.0],
        [0.5, -1.0, 0.25],
        [1e-320, -0.0, 5e-324],
        [LIMIT, -LIMIT, LIMIT],
        [0.0, -400.0, 3.0],
        [1e154, 1e-154, -1e154],
    ]
)
ROWS: dict[str, list[float]] = {
    "plain": [0.1, -0.4, 0.3],
    "huge": [1e150, -1e150, 1e150],
    "one huge entry": [0.0, 1e153, 1e-160],
    "on the sphere": [0.6, 0.8, 0.0],
    "too small to square": [1e-170, -1e-200, 1e-300],
    "subnormal": [5e-324, -1e-320, 2e-308],
    "zeros": [0.0, 0.0, 0.0],
    "negative zeros": [-0.0, -0.0, -0.0],
}
NEIGHBOURS = [*ROWS, "opposite", "label flipped", "a copy of another"]
ODD_LABELS = {"squared": LIMIT, "huber": -1e300, "softmax": 2.0, "logistic": -1.0}


@cache
def study_of(loss: str, method: str = "dp_admm", **changes: Any) -> Study:
    training = {"loss": loss, "method": method, "noise_multiplier": 5.0, "n_rounds": len(POINTS), **changes}
    step = {"method.learning_rate": 0.5} if method == "dp_sgd" else {}
    return replace(
        STUDY,
        training=nest({**training, **step, "delta": 1e-5}),
        classes=CLASSES[loss],
        provenance=dict.fromkeys(step, "assumed"),
    )


def table(loss: str, neighbour: str | None) -> tuple[Any, Any]:
    """Return D, or D', where the third row is replaced."""
    features, labels = rows(seed=5)
    labels = np.maximum(labels, 0.0) if loss == "softmax" else labels
    if neighbour == "opposite":
        features[2] *= -1.0
    elif neighbour == "label flipped":
        labels[2] = 1.0 - labels[2] if loss == "softmax" else -labels[2]
    elif neighbour == "a copy of another":
        features[2], labels[2] = features[4], labels[4]
    elif neighbour:
        features[2], labels[2] = ROWS[neighbour], ODD_LABELS[loss]
    return features, labels


def run_study(
    folder: Path,
    study: Study,
    neighbour: str | None,
    *,
    sparse: bool = False,
    agent: bool = False,
    seed: int = 1,
) -> Outbound:
    """Run a whole study with a restart: a guard at given points, or an agent at its own."""
    features, labels = table(study.training.loss.name, neighbour)
    opened, seen = own(csr_array(features) if sparse else features, labels), Outbound()

    with watched(seen, seed):
        for part in (range(1, 4), range(3, len(POINTS) + 1)):
            with guarded(folder, opened, WIDE) as guard:
                enrolled = guard.enrol(study)
                seen.messages.append(f"{enrolled.terms} {enrolled.query_at(1).grid}")
                asked = Agent(guard, study) if agent else None
                for round in part:
                    if asked:
                        seen.ask(asked.step, round, consensus(round, study.shape))
                    else:
                        seen.ask(guard.answer, study.hash, round, _point(study, round))
                _send_refused_requests(seen, guard, study, asked)
                seen.uploads += [answer for _, answer, _ in guard.transcript(study.hash)]
                seen.messages += [f"{round} {memo.hex()}" for round, _, memo in guard.transcript(study.hash)]
        with guarded(folder, opened, WIDE) as guard:
            guard.enrol(study)
            seen.ask(guard.leave, study.hash)
            seen.ask(guard.answer, study.hash, 1, _point(study, 2))
            seen.ask(guard.enrol, study)
    return seen


def _point(study: Study, round: int) -> Any:
    return np.tile(POINTS[round - 1][:, None], (1, study.shape[1]))


def _send_refused_requests(seen: Outbound, guard: Guard, study: Study, agent: Agent | None) -> None:
    """Send all kinds of invalid requests and record the messages of the refusals."""
    shape, before = study.shape, len(seen.uploads)
    for name, round, point in (
        ("ab" * 32, 1, np.zeros(shape)),
        (study.hash, 1, np.full(shape, 7.0)),
        (study.hash, 0, np.zeros(shape)),
        (study.hash, 1000, np.zeros(shape)),
        (study.hash, len(POINTS), np.full(shape, np.nan)),
        (study.hash, len(POINTS), np.zeros((1, 1))),
        (study.hash, 3, np.ones(shape)),
    ):
        seen.ask(guard.answer, name, round, point)
        if agent:
            seen.ask(agent.step, round, point if np.isnan(point).any() else point + 9.0)
    for changes in (
        {"n_rounds": 6000},
        {"noise_multiplier": 0.2},
        {"intercept": True},
    ):
        seen.ask(lambda other: guard.enrol(other).terms, study_of("huber", **changes))
    seen.ask(lambda: guard.enrol(replace(study, features=("x0", "x1"))).terms)
    assert len(seen.uploads) == before


@cache
def baseline(loss: str, method: str, *, sparse: bool = False, agent: bool = False) -> Outbound:
    """Return the outbound data of D."""
    with memory_folder() as folder:
        return run_study(folder, study_of(loss, method), None, sparse=sparse, agent=agent)


CASES = [
    (loss, sparse, neighbour)
    for loss in CLASSES
    for sparse in (False, True)
    for neighbour in NEIGHBOURS
    if LONG or (loss == "logistic" and not sparse) or neighbour in ("huge", "subnormal", "opposite")
]


def test_guards_of_neighbouring_tables_differ_only_in_uploads_within_the_sensitivity():
    for loss, sparse, neighbour in CASES:
        with case(loss, sparse, neighbour):
            study = study_of(loss)
            one = baseline(loss, "dp_admm", sparse=sparse)
            with memory_folder() as folder:
                other = run_study(folder, study, neighbour, sparse=sparse)
            assert other.messages == one.messages
            grid = Lattice(float(study.problem.loss.lipschitz), D * study.shape[1], M)
            moved = [steps_between(a, b) for a, b in zip(one.uploads, other.uploads, strict=True)]
            assert len(moved) > len(POINTS)
            assert max(moved) <= allowed_steps(grid)
            assert max(moved) > 0.0


def test_agents_of_neighbouring_tables_differ_only_in_uploads():
    for neighbour, method in product(["plain", "huge", "subnormal", "label flipped"], ["dp_admm", "dp_sgd"]):
        with case(neighbour, method):
            study = study_of("logistic", method)
            with memory_folder() as folder:
                other = run_study(folder, study, neighbour, agent=True)
            one = baseline("logistic", method, agent=True)
            assert other.messages == one.messages
            assert len(other.uploads) == len(one.uploads)
            assert any(not np.array_equal(a, b) for a, b in zip(one.uploads, other.uploads, strict=True))


@pytest.mark.parametrize("agent", [False, True])
def test_bytes_are_a_function_of_rows_and_noise(agent):
    study, seen = study_of("logistic"), []
    for seed in (1, 1, 2):
        with memory_folder() as folder:
            seen.append(run_study(folder, study, None, agent=agent, seed=seed))
    assert seen[0].messages == seen[1].messages == seen[2].messages
    uploads = [[upload.tobytes() for upload in item.uploads] for item in seen]
    assert uploads[0] == uploads[1]
    assert not set(uploads[0]) & set(uploads[2])


HASHES = re.compile(r'("(?:fingerprint|content|chain)": )"[0-9a-f]{64}"|(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])')


def test_ledger_output_differs_only_in_salted_hashes_and_uploads(cli, tmp_path):
    """A ledger contains one hash of the rows. It is salted and never displayed."""
    study, texts, exports = study_of("logistic"), [], []
    for neighbour in (None, "huge", None):
        with memory_folder() as folder:
            run_study(folder, study, neighbour)
            exported = tmp_path / "ledger.json"
            shown = [
                cli("site", "budget", "--ledger", folder).succeeded().out,
                cli("site", "budget", "--ledger", folder, "--json").succeeded().out,
                cli("site", "budget", "--ledger", folder).succeeded().out,
                cli("site", "export", "--ledger", folder, "--output", exported).succeeded().out,
                exported.read_text(),
            ]
            about = read_ledger(folder).accounts[study.hash].about
            everything = "".join(shown)
            assert about["salt"] not in everything
            assert about["rows"] not in everything
            assert len(bytes.fromhex(about["salt"])) == 16
            texts.append([item.replace(str(folder), "FOLDER") for item in shown])
            exports.append(json.loads(exported.read_text()))
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]
    masked = [[HASHES.sub(r'\1"..."', text) for text in item] for item in texts]
    assert masked[0] == masked[1]
    for record, other in zip(exports[0]["records"], exports[1]["records"], strict=True):
        differing = {name for name in record if record[name] != other[name]}
        allowed = {"chain", "content"} if record["kind"] in ("reserve", "spend") else {"chain"}
        assert differing <= allowed
