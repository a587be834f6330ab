"""Tables -> scores of a model: files of any size in batches, and tables in memory of whatever library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import DataError
from dpadmm._base.suggestions import unknown_name
from dpadmm.data.cells import as_numbers, placed
from dpadmm.data.encoder import Encoder
from dpadmm.data.reader import open_batches
from dpadmm.data.schema import Number, Plain, Schema

if TYPE_CHECKING:
    from dpadmm.model.model import Model


class Scored(NamedTuple):
    """Some rows of a table: their scores (rows, p), and the columns that were asked for beside them."""

    scores: Floats
    beside: Any


class Scorer:
    """Scores record batches; ``report`` counts what was clamped, unknown or missing, for the owner."""

    def __init__(self, model: Model) -> None:
        if model.schema is None and not model.feature_names:
            raise DataError(
                "the model does not know the names of its columns, so it can predict on matrices only"
            )
        self._model = model
        schema = model.schema or Schema(tuple(Plain(name) for name in model.feature_names))
        self.columns = [column.name for column in schema.columns]
        self.numbers = frozenset(c.name for c in schema.columns if isinstance(c, Number | Plain))
        self._encoder = Encoder(schema, intercept=model.intercept)
        self.report = self._encoder.report

    def scores(self, batch: Any) -> Floats:
        """A record batch with the model's columns -> (rows, p)."""
        model = self._model
        if model.schema is not None:
            return np.asarray(self._encoder.encode(batch) @ model.weights, dtype=float)
        cells = np.column_stack([as_numbers(batch.column(name), name) for name in self.columns])
        bad = np.flatnonzero(~np.isfinite(cells).all(axis=0))
        if len(bad):
            raise DataError(f"column {self.columns[bad[0]]!r} has a missing or infinite cell")
        self.report.rows += len(cells)
        return model.decision_function(cells)


def score_file(
    scorer: Scorer, path: Path, *, beside: Sequence[str] = (), numbers: frozenset[str] = frozenset()
) -> Iterator[Scored]:
    """A CSV or Parquet file of any size, a few megabytes at a time.

    The columns ``beside`` come along as they are: text in a CSV, unless they are among ``numbers``.
    """
    batches = open_batches(path, [*scorer.columns, *beside], numbers=scorer.numbers | numbers)
    with closing(batches):  # type: ignore[type-var]  # a generator
        for batch in batches:
            first = scorer.report.rows
            try:
                scores = scorer.scores(batch)
            except DataError as error:
                raise placed(error, path, first, batch.num_rows) from None
            yield Scored(scores, batch.select(list(beside)))
    if not scorer.report.rows:
        raise DataError(f"{path} has no rows")


def is_table(rows: object) -> bool:
    """Whether rows have named columns: a data frame, an Arrow table, or a mapping of columns."""
    return isinstance(rows, Mapping | pa.Table | pa.RecordBatch) or hasattr(rows, "columns")


def batches_of(table: Any, names: Sequence[str]) -> list[Any]:
    """Record batches with these columns, from pandas, polars, pyarrow or a mapping of columns.

    Examples
    --------
    >>> [batch.num_rows for batch in batches_of({"age": [3, 4], "sex": ["f", "m"]}, ["age"])]
    [2]
    """
    known = list(table) if isinstance(table, Mapping) else list(_names(table))
    for name in names:
        if name not in known:
            raise unknown_name("column", name, [str(each) for each in known], "the table")
        if known.count(name) > 1:
            raise DataError(f"the table: column {name!r} occurs more than once")
    if isinstance(table, pa.Table | pa.RecordBatch):
        chosen = table.select(list(names))
    elif hasattr(table, "to_arrow"):  # polars
        chosen = table.select(list(names)).to_arrow()
    else:
        chosen = pa.table({name: _array(table[name], name) for name in names})
    whole = chosen.combine_chunks() if isinstance(chosen, pa.Table) else chosen
    return whole.to_batches() if isinstance(whole, pa.Table) else [whole]


def _names(table: Any) -> Any:
    return table.schema.names if isinstance(table, pa.Table | pa.RecordBatch) else table.columns


def _array(cells: Any, name: str) -> Any:
    try:
        made = pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise DataError(f"column {name!r} mixes kinds of values, or they are no plain values") from None
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
