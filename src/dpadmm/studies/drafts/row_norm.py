"""Choose the bound of row norms from a public sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpadmm.data.encoder import Encoder
from dpadmm.data.reader import Table, open_batches
from dpadmm.data.schema import ROW_NORMS, Number
from dpadmm.data.schema_file import schema_from
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import row_norms
from dpadmm.studies.drafts.draft import DraftColumn

MAX_ROWS = 100_000
MAX_CLIPPED = 0.02
"""Share of the public rows that may be clipped."""

HUGE = 1e4
"""Row norm, relative to the default, at which no row is clipped."""


def choose_row_norm(table: Table, columns: Sequence[DraftColumn], label: str) -> float | None:
    """Return a bound that clips few of the public rows, or None for the default √columns if it clips few.

    Rows of the sample that are not clipped by the default keep it: a larger bound would add noise for nothing.
    """
    entries = [{**column.about, "name": column.name, "allow": True} for column in columns if column.about]
    if not entries:
        return None
    try:
        schema = schema_from(entries, label=label)
        usual = schema.scale
        encoder = Encoder(schema_from(entries, HUGE * usual, label=label), invalid_as_missing=True)
    except StudyError:  # the text of the draft has the reason
        return None
    if schema.bounded:
        return None
    norms: list[Floats] = []
    numbers = frozenset(column.name for column in schema.columns if isinstance(column, Number))
    for batch in open_batches(
        table, [column.name for column in schema.columns], numbers=numbers, invalid_as_missing=True
    ):
        norms.append(row_norms(encoder.encode(batch)) * HUGE * usual)
        if encoder.report.rows >= MAX_ROWS:
            break
    found = np.concatenate(norms) if norms else np.zeros(0)
    if np.mean(found > usual) <= MAX_CLIPPED:
        return None
    bound = float(np.quantile(found, 1.0 - MAX_CLIPPED))
    unit = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return min(ROW_NORMS[1], max(ROW_NORMS[0], round(math.ceil(bound / unit - 1e-9) * unit, 12)))
