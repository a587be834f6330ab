"""Sums over small cohorts in NumPy, and random numbers with the same bits in NumPy and compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from cases import LOSS_CASES, coded, random_labels, random_rows
from looping import case
from scipy.sparse import csr_array

from dpadmm import kernels
from dpadmm.kernels import compiled_normals, normals
from dpadmm.losses import Loss
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Rows, make_rows

SIZES = (2, 3, 40, 200)
D = 6
STORAGE = {"dense": np.asarray, "float32": lambda a: a.astype(np.float32), "CSR": csr_array, "coded": coded}


def cohort(loss: Loss, storage: str, *, weighted: bool = False) -> Rows:
    rng = np.random.default_rng(3)
    a = random_rows(rng, sum(SIZES), D) * 0.999999
    a[rng.random(a.shape) < 0.4] = 0.0  # CSR rows differ in length, and some are empty
    return make_rows(
        STORAGE[storage](a),
        random_labels(loss, rng, len(a)),
        order=rng.permutation(len(a)),
        offsets=np.concatenate([[0], np.cumsum(SIZES)]),
        row_weights=rng.random(len(a)) if weighted else None,
    )


def points_for(rows: Rows, loss: Loss) -> Floats:
    return 3.0 * np.random.default_rng(4).standard_normal((rows.n_agents, D, loss.n_outputs))


def close(found: Floats, expected: Floats) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_small_cohorts_have_the_sums_of_the_reference(weighted: bool) -> None:
    for loss, storage in product(LOSS_CASES, STORAGE):
        with case(loss, storage):
            rows = cohort(loss, storage, weighted=weighted)
            assert kernels.is_small(rows)
            points, active = points_for(rows, loss), np.array([0, 2])
            one_point = np.broadcast_to(points[0], points.shape)
            for each in (points, one_point):
                close(kernels.gradient(rows, each, loss), kernels.reference_gradient(rows, each, loss))
            found = kernels.gradient(rows, points, loss, active)
            close(found, kernels.reference_gradient(rows, points, loss, active))
            assert not found[[1, 3]].any()
            shares = np.array([0.1, 0.4, 0.3, 0.2])
            found = kernels.weighted_gradient(rows, points[0], loss, shares, bound=loss.lipschitz)
            close(found, np.tensordot(shares, kernels.reference_gradient(rows, one_point, loss), 1))


def test_an_agent_alone_has_the_bits_of_the_cohort() -> None:
    for loss, storage in product(LOSS_CASES, STORAGE):
        with case(loss, storage):
            rows = cohort(loss, storage)
            points = points_for(rows, loss)
            sums, scores = kernels.gradient_sums(rows, points, loss), kernels.scores(rows, points)
            for i in range(rows.n_agents):
                alone, mine = rows.agent(i), slice(rows.offsets[i], rows.offsets[i + 1])
                np.testing.assert_array_equal(kernels.gradient_sums(alone, points[i : i + 1], loss)[0], sums[i])
                np.testing.assert_array_equal(kernels.scores(alone, points[i : i + 1]), scores[mine])
                one = kernels.scores(rows, np.broadcast_to(points[i], points.shape))
                np.testing.assert_array_equal(one[mine], scores[mine])


def test_numpy_and_the_compiler_draw_the_same_bits() -> None:
    for seed, round, n, size in [(1, 1, 3, 7), (7, 3 + (4 << 40), 50, 104), (9, 100, 1, 1), (2**62, 5, 300, 32)]:
        with case(seed, round, n, size):
            assert n * size <= normals.MAX_NUMPY_NUMBERS
            key, found = normals.key_of(seed), np.empty((n, size))
            compiled_normals.fill(key, round, found)
            np.testing.assert_array_equal(normals.standard_normals(seed, round, n, size), found)
            agents, scales = np.arange(n)[::-1].copy(), np.random.default_rng(0).random(n)
            sums = compiled_normals.weighted_sums(key, round, agents, scales, size)
            np.testing.assert_array_equal(normals.weighted_normals(seed, round, agents, scales, size), sums.sum(axis=0))


@pytest.mark.parametrize("method", ["auto", "dp_admm"])
def test_small_simulations_do_not_load_the_compiler(method: str) -> None:
    code = (
        "import sys; from dpadmm import simulate; "
        f"simulate('synthetic', method={method!r}, n_agents=5, n_rounds=3, epsilon=1.0, delta=1e-5, seed=1); "
        "sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_start_of_the_compiler_is_announced(tmp_path):
    """With an empty cache; the second process loads the compiled function."""
    code = (
        "from dpadmm import kernels\n"
        "from dpadmm.kernels.normals import MAX_NUMPY_NUMBERS, standard_normals\n"
        "starts = []\n"
        "kernels.compilation_listeners.append(lambda: starts.append(1))\n"
        "standard_normals(7, 3, 1, MAX_NUMPY_NUMBERS)\n"
        "few = len(starts)\n"
        "standard_normals(7, 3, 1, MAX_NUMPY_NUMBERS + 1)\n"
        "print(few, bool(starts))\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("0 True", "0 False"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == expected
