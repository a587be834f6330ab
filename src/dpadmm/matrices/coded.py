"""Coded rows: numbers, and the columns that the categories of a row set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array


def code_type(width: int) -> np.dtype[Any]:
    """Return the smallest unsigned type for the indices of ``width`` columns."""
    return np.min_scalar_type(width - 1)


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Rows ``a`` with ``a[places] = values[:-1]``, ``a[code] = values[-1]`` for each of its codes, and 0 elsewhere.

    The last value of a row is the entry of its categories, after scaling and clipping. A row whose values are all 0 is
    a row of zeros. Each category has its own columns, so no two codes of a row are equal (:meth:`check`).

    Parameters
    ----------
    values : (rows, numbers + 1), float64 or float32
    codes : (rows, categories), unsigned
        Columns.
    places : (numbers,)
        Columns of the numbers.
    width : int
        d, the number of columns.

    Examples
    --------
    >>> rows = CodedRows(np.array([[0.2, 0.6], [0.3, 0.5]]), np.array([[1], [2]], np.uint8), np.array([0]), 3)
    >>> rows.toarray().tolist()
    [[0.2, 0.6, 0.0], [0.3, 0.0, 0.5]]
    >>> (rows @ np.array([1.0, 10.0, 100.0])).tolist()
    [6.2, 50.3]
    """

    values: NDArray[Any]
    codes: NDArray[Any]
    places: NDArray[np.int64]
    width: int

    ndim: ClassVar[int] = 2

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def n_stored(self) -> int:
        """Number of stored entries of a row."""
        return len(self.places) + int(self.codes.shape[1])

    @property
    def T(self) -> Transposed:
        return Transposed(self)

    def check(self) -> None:
        """Raise ValueError for a code outside of the matrix, or for columns that two codes or numbers can set."""
        n, k = len(self.values), len(self.places)
        if self.values.shape != (n, k + 1) or self.places.shape != (k,) or self.codes.shape[:-1] != (n,):
            raise ValueError("coded rows have a value for every number, a factor, and as many rows of codes")
        if self.codes.dtype not in (np.uint8, np.uint16, np.uint32):
            raise ValueError("the codes of coded rows are unsigned numbers of at most 32 bits")
        # by column, which is ten times as fast as all at once
        low, high = (np.array([end(column) for column in self.codes.T], np.int64) for end in (np.min, np.max))
        low, high = np.concatenate([low, self.places]), np.concatenate([high, self.places])
        order = np.argsort(low)
        if (low < 0).any() or (high >= self.width).any() or (high[order][:-1] >= low[order][1:]).any():
            raise ValueError("every number and every category of coded rows has columns of its own")

    def __getitem__(self, rows: Any) -> CodedRows:
        return replace(self, values=self.values[rows], codes=self.codes[rows])

    def __matmul__(self, weights: NDArray[Any]) -> NDArray[Any]:
        """Return ``a·w`` of each row, added up in a fixed order."""
        by_column = np.asarray(weights, dtype=np.float64).reshape(self.width, -1)
        out = np.zeros((len(self.values), by_column.shape[1]))
        for codes in self.codes.T:
            out += by_column[codes]
        out *= self.values[:, -1:]
        for place, numbers in zip(self.places, self.values.T[:-1], strict=True):
            out += numbers[:, None] * by_column[place]
        return out.reshape(len(out), *np.shape(weights)[1:])

    def squared(self) -> CodedRows:
        """Return the square of each entry, in float64."""
        return replace(self, values=np.square(self.values, dtype=np.float64))

    def sum(self, axis: int) -> NDArray[np.float64]:
        """Return the sum of each row (axis 1)."""
        if axis != 1:
            raise ValueError("coded rows are summed row by row")
        total: NDArray[np.float64] = self.codes.shape[1] * self.values[:, -1].astype(np.float64)
        for numbers in self.values.T[:-1]:
            total += numbers
        return total

    def copy(self) -> CodedRows:
        return replace(self, values=self.values.copy(), codes=self.codes.copy(), places=self.places.copy())

    def astype(self, dtype: DTypeLike, copy: bool = True) -> CodedRows:
        return replace(self, values=self.values.astype(dtype, copy=copy))

    def toarray(self) -> NDArray[Any]:
        """Return dense rows."""
        out = np.zeros(self.shape, self.dtype)
        out[:, self.places] = self.values[:, :-1]
        np.put_along_axis(out, self.codes.astype(np.int64), self.values[:, -1:], axis=1)
        return out

    def tocsr(self) -> csr_array:
        """Return the same rows as a CSR matrix."""
        n, k = len(self.values), len(self.places)
        data = np.repeat(self.values, [1] * k + [self.codes.shape[1]], axis=1)
        places = np.broadcast_to(self.places, (n, k))
        indices = np.concatenate([places, self.codes], axis=1)
        pointers = np.arange(0, data.size + 1, self.n_stored)
        out = csr_array((data.ravel(), indices.ravel(), pointers), shape=self.shape)
        out.sort_indices()
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self.toarray()  # NumPy converts the type


@dataclass(frozen=True, eq=False)
class Transposed:
    """``Aᵀ`` of coded rows A."""

    rows: CodedRows

    def __matmul__(self, slopes: NDArray[Any]) -> NDArray[np.float64]:
        """``Σ_j slope_j·a_j``: (rows,) or (rows, p) -> (d,) or (d, p).

        Each column is added up in the order of the rows, without BLAS, whose sums depend on the number of threads. A
        row's contribution to a column is rounded once as a product and once with each other row that sets this column:
        at most m times for m rows, as with dense rows, for which the error bound is proved
        (docs/explanation/proofs.md).
        """
        values, codes, width = self.rows.values, self.rows.codes, self.rows.width
        by_output = np.asarray(slopes, dtype=np.float64).reshape(len(values), -1)
        weighted = by_output * values[:, -1:]
        named = codes.ravel()
        out = np.empty((width, by_output.shape[1]))
        for h in range(by_output.shape[1]):
            out[:, h] = np.bincount(named, np.repeat(weighted[:, h], codes.shape[1]), width)
        out[self.rows.places] = np.einsum("ij,ip->jp", values[:, :-1], by_output)
        return out.reshape(width, *np.shape(slopes)[1:])
