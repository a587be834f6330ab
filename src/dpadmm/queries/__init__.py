"""The closed list of what may be said about rows: sums over rows of a function with a bounded norm.

A statistic is one file: the function, the proof of its bound in the docstring, and a line in ``QUERIES``.
Guard, ledger and wire know none of them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.parameters.fields import registered
from dpadmm.queries.problem import Problem, Rows


class Query(Protocol):
    """``Σ_j f(row_j, parameters)`` with ``‖f‖ ≤ row_norm`` whatever the row and the parameters are.

    Where rows have weights (``Rows.row_weights``, from 0 to 1), f is shortened first and then multiplied with the row's
    weight, so that no weight makes it longer. Replacing a row moves such a sum by at most ``2·row_norm``, and silencing
    one by at most ``row_norm``: f of a row of zeros is 0, whatever its label is, since labels of silent rows stay where
    they are.
    """

    name: ClassVar[str]

    @property
    def n_features(self) -> int:
        """d, the width of the rows that it is a function of."""

    @property
    def row_norm(self) -> float:
        """Bound of the L2 norm of one row's contribution."""

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Shape of the public parameters of one agent."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sum."""

    def accepts(self, parameters: Floats) -> bool:
        """Whether one agent's finite parameters are within their bounds; others are refused before rows are read."""

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        """The sums of every agent (n, *shape), each row's contribution shortened to a norm of ``bound``."""

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        """The sums over the numbers of rows, each row's contribution shortened to ``row_norm``."""


QUERIES: Mapping[str, Any] = registered(
    __name__,
    "gradient",
    "preconditioned_gradient",
    "moments",
    "newton",
    "column_sums",
    "score_histogram",
    having="sums",
)
"""The closed list, by name; ``of`` makes one from a problem and the width of rows."""


def make_query(name: str, problem: Problem, n_features: int) -> Query:
    """The statistic of this name for a problem, over rows of ``n_features`` columns."""
    if name not in QUERIES:
        raise StudyError(f"there is no statistic {name!r}; agents can answer for {', '.join(QUERIES)}")
    made: Query = QUERIES[name].of(problem, n_features)
    return made
