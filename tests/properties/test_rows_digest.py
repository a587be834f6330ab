"""The digest that pins a study to its rows changes with every bit of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import coded, prove
from guards import STUDY, guarded, memory_folder, private, refusal
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.data.table import encode_table
from dpadmm.losses import Huber
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features, layout

N, D = 7, 3
STORAGE = ["dense-f64", "dense-f32", "csr-f64", "csr-f32", "coded-f64", "coded-f32"]
LOSS = Huber(delta=1.0)


@cache
def table(n: int = N, d: int = D) -> tuple[Floats, Floats]:
    """Return rows that need no clipping. Every third number is zero."""
    rng = np.random.default_rng([n, d])
    features = rng.uniform(0.1, 0.5, (n, d)).astype(np.float32).astype(float) / 2.0 ** np.ceil(np.log2(d))
    features.ravel()[::3] = 0.0
    return features, rng.uniform(-0.5, 0.5, n)


def stored(features: Floats, storage: str) -> Any:
    kind, width = storage.split("-")
    typed = np.asarray(features, dtype=np.float64 if width == "f64" else np.float32)
    return {"dense": np.array, "csr": csr_array, "coded": coded}[kind](typed)


def digest(features: Features, labels: Floats, row_weights: Floats | None = None) -> str:
    return private(features, labels, row_weights=row_weights).digest()


def flipped(values: Any, at: int, bit: int) -> Any:
    """Return a copy with one low bit of one number flipped, so that rows stay small and finite.

    A zero becomes a normal number, because subnormal numbers are replaced by zeros.
    """
    out = values.copy()
    words = out.view(np.uint64 if out.dtype.itemsize == 8 else np.uint32).reshape(-1)
    words[at] ^= 1 << bit if words[at] else 1 << np.finfo(out.dtype).nmant | 1 << bit
    return out


def part(matrix: Any) -> Any:
    """Return the array with the numbers of a matrix."""
    return layout(matrix)[1][0]


def with_part(matrix: Any, values: Any) -> Any:
    if isinstance(matrix, csr_array):
        return csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
    return replace(matrix, values=values) if isinstance(matrix, CodedRows) else values


def test_digest_depends_on_every_cell_and_label() -> None:
    for storage in STORAGE:
        with case(storage):
            features, labels = table()
            matrix = stored(features, storage)
            seen = {digest(matrix, labels)}
            for at in range(part(matrix).size):
                seen.add(digest(with_part(matrix, flipped(part(matrix), at, 0)), labels))
            for at in range(N):
                seen.add(digest(matrix, flipped(labels, at, 0)))
            assert len(seen) == 1 + part(matrix).size + N
            assert digest(stored(features, storage), labels.copy()) in seen


def test_digest_depends_on_every_weight_including_1() -> None:
    features, labels = table()
    weights = np.linspace(0.25, 0.75, N)
    held, before = private(features, labels, row_weights=weights), weights.copy()
    seen = {digest(features, labels), digest(features, labels, np.ones(N)), held.digest()}
    seen |= {digest(features, labels, flipped(weights, at, 0)) for at in range(N)}
    assert len(seen) == 3 + N
    weights[0] = 1.0  # by the caller, who keeps a reference
    assert held.digest() == digest(features, labels, before)


@prove
@given(st.sampled_from(STORAGE), st.integers(0, 10**6), st.integers(0, 20), st.booleans())
def test_digest_depends_on_every_bit(storage: str, place: int, bit: int, of_labels: bool) -> None:
    features, labels = table()
    matrix = stored(features, storage)
    if of_labels:
        other = matrix, flipped(labels, place % N, bit)
    else:
        other = with_part(matrix, flipped(part(matrix), place % part(matrix).size, bit)), labels
    assert digest(*other) != digest(matrix, labels)


def test_digest_depends_on_every_category_code() -> None:
    features, labels = table()
    matrix = replace(coded(features), width=D + 1)
    seen = {digest(matrix, labels)}
    for at in range(N):
        codes = matrix.codes.copy()
        codes[at] += 1
        seen.add(digest(replace(matrix, codes=codes), labels))
    assert len(seen) == 1 + N


LARGE = 150_000


@pytest.mark.parametrize("storage", ["dense-f64", "csr-f32"])
def test_digest_covers_all_cells_of_a_large_table(storage: str) -> None:
    features, labels = table(LARGE, 4)
    matrix = stored(features, storage)
    size = part(matrix).size
    places = [0, size // 3, 2**17 + 1, size - 1]
    seen = {digest(with_part(matrix, flipped(part(matrix), at, 0)), labels) for at in places}
    seen |= {digest(matrix, flipped(labels, at, 0)) for at in (0, LARGE // 2, LARGE - 1)}
    assert len(seen | {digest(matrix, labels)}) == 8


def moved_to(matrix: csr_array, at: int) -> csr_array:
    """Move one stored number of a sparse matrix to another column."""
    indices = matrix.indices.copy()
    row = int(np.searchsorted(matrix.indptr, at, "right")) - 1
    taken = set(indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist())
    indices[at] = next(j for j in range(matrix.shape[1]) if j not in taken)
    return csr_array((matrix.data, indices, matrix.indptr), shape=matrix.shape)


def test_digest_depends_on_positions_in_sparse_rows() -> None:
    """The same numbers in other columns, or with another boundary between two rows."""
    features, labels = table()
    matrix = stored(features, "csr-f64")
    seen = {digest(matrix, labels)}
    changes = 0
    for at in range(matrix.nnz):
        seen.add(digest(moved_to(matrix, at), labels))
        changes += 1
    single = csr_array((np.full(4, 0.2), np.zeros(4, int), np.array([0, 1, 2, 3, 4])), shape=(4, 3))
    four = np.full(4, 0.5)
    seen.add(digest(single, four))
    for pointers in ([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], [0, 1, 2, 2, 3], [0, 1, 2, 3, 3]):
        part = (np.full(3, 0.2), np.zeros(3, int), np.array(pointers))
        seen.add(digest(csr_array(part, shape=(4, 3)), four))
    assert len(seen) == 2 + changes + 4


def test_digest_depends_on_the_dtype_of_empty_rows() -> None:
    """Sparse rows of zeros have no stored bytes."""
    labels = table()[1]
    kinds = {digest(csr_array((N, D), dtype=kind), labels) for kind in (np.float32, np.float64)}
    assert len(kinds) == 2


ZEROS = np.zeros((N, D))
CHANGES: dict[str, Callable[[Floats, Floats], tuple[Any, Floats]]] = {
    "another kind of number": lambda a, b: (a.astype(np.float32), b),
    "sparse": lambda a, b: (csr_array(a), b),
    "sparse, another kind": lambda a, b: (csr_array(a.astype(np.float32)), b),
    "a stored zero": lambda a, b: (_with_zero(a, 0.0), b),
    "a stored negative zero": lambda a, b: (_with_zero(a, -0.0), b),
    "a column of zeros more": lambda a, b: (np.hstack([a, ZEROS[:, :1]]), b),
    "a column of zeros more, sparse": lambda a, b: (csr_array(np.hstack([a, ZEROS[:, :1]])), b),
    "a row of zeros more, sparse": lambda a, b: (csr_array(np.vstack([a, ZEROS[:1]])), np.append(b, 0.1)),
    "negative zeros": lambda a, b: (np.where(a == 0.0, -0.0, a), b),
    "one negative zero": lambda a, b: (_one_negative(a), b),
    "rows in another order": lambda a, b: (a[::-1], b[::-1]),
    "two rows swapped": lambda a, b: (a[[1, 0, *range(2, N)]], b[[1, 0, *range(2, N)]]),
    "two labels swapped": lambda a, b: (a, b[[1, 0, *range(2, N)]]),
    "two columns swapped": lambda a, b: (a[:, [1, 0, 2]], b),
    "transposed numbers": lambda a, b: (np.ascontiguousarray(a.T).reshape(N, D), b),
    "a row less": lambda a, b: (a[:-1], b[:-1]),
    "a row twice": lambda a, b: (np.vstack([a, a[:1]]), np.append(b, b[:1])),
    "the sign of a label": lambda a, b: (a, np.where(np.arange(N) == 3, -b, b)),
    "a label of zero": lambda a, b: (a, np.where(np.arange(N) == 3, 0.0, b)),
    "a label of negative zero": lambda a, b: (a, np.where(np.arange(N) == 3, -0.0, b)),
    "a number of the rows among the labels": lambda a, b: (a, np.where(np.arange(N) == 0, a[0, 1], b)),
}


def _with_zero(a: Floats, zero: float) -> csr_array:
    matrix = csr_array(a)
    place = int(np.argmax(a[0] == 0.0))
    indices = np.insert(matrix.indices, place, place)
    return csr_array((np.insert(matrix.data, place, zero), indices, np.append(0, matrix.indptr[1:] + 1)))


def _one_negative(a: Floats) -> Floats:
    out = a.copy()
    out.ravel()[np.flatnonzero(out.ravel() == 0.0)[-1]] = -0.0
    return out


def test_these_changes_change_the_digest() -> None:
    features, labels = table()
    seen = {name: digest(*change(features.copy(), labels.copy())) for name, change in CHANGES.items()}
    seen["none"] = digest(features, labels)
    assert len(set(seen.values())) == len(seen), sorted(seen, key=lambda name: seen[name])


SHAPED = [name for name in CHANGES if "column of zeros" not in name]


@pytest.mark.parametrize("name", SHAPED)
def test_study_is_refused_after_rows_changed(name: str) -> None:
    features, labels = table()
    other = CHANGES[name](features.copy(), labels.copy())
    with memory_folder() as folder:
        with guarded(folder, lambda study: private(features, labels)) as guard:
            guard.enrol(STUDY)
        with guarded(folder, lambda study: private(*other)) as guard:
            assert refusal(guard.enrol, STUDY).code == "data-changed"
            assert guard._ledger.status().seq == 2  # the cap and the reservation
        with guarded(folder, lambda study: private(features, labels)) as guard:
            guard.enrol(STUDY)


@pytest.mark.parametrize("storage", STORAGE)
def test_study_is_refused_after_one_bit_changed(storage: str) -> None:
    features, labels = table()
    matrix = stored(features, storage)
    with memory_folder() as folder:
        with guarded(folder, lambda study: private(matrix, labels)) as guard:
            guard.enrol(STUDY)
        others = [(with_part(matrix, flipped(part(matrix), at, 0)), labels) for at in (0, part(matrix).size - 1)]
        others += [(matrix, flipped(labels, at, 0)) for at in (0, N - 1)]
        others += [(moved_to(matrix, at), labels) for at in (0, matrix.nnz - 1)] if "csr" in storage else []
        for other in others:
            with guarded(folder, lambda study, other=other: private(*other)) as guard:
                assert refusal(guard.enrol, STUDY).code == "data-changed"


def test_digest_of_mapped_rows_equals_digest_in_memory(tmp_path: Path) -> None:
    schema, label = Schema((Number("a", (0, 1)), Number("b", (0, 1)))), Label("y", bounds=(0, 1))
    rng = np.random.default_rng(4)
    lines = [",".join(f"{x:.6f}" for x in row) for row in rng.uniform(0, 1, (5000, 3))]
    digests = []
    for last in (lines[-1], "0.5,0.5,0.5"):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(["a,b,y", *lines[:-1], last]) + "\n")
        for memory_bytes in (0, 2**30):
            encoded = encode_table(path, schema, label, memory_bytes=memory_bytes)
            digests.append(digest(encoded.features, encoded.labels))
    assert digests[0] == digests[1]
    assert digests[2] == digests[3]
    assert digests[0] != digests[2]
