"""Draft a study in Python from a public table, and compare bounds of the row norm by their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpadmm.data.reader import Table, open_table
from dpadmm.errors import DPADMMError
from dpadmm.matrices.arrays import Floats
from dpadmm.planning.costs import with_rounds_for
from dpadmm.planning.forecast import forecast_settings
from dpadmm.planning.scenarios import MIN_FOLDS, public_scenario
from dpadmm.studies.drafts.draft import Draft
from dpadmm.studies.drafts.table import Answers, LabelKind, draft_from_table
from dpadmm.studies.study import Study

ROWS_PER_PUBLIC_ROW = 10
"""Assumed number of private rows for each public row."""

CLEAR, MIN_GAIN = 2.0, 0.02
"""Number of standard errors, and share of the loss, by which a forecast must be better."""

MEASURES = ("log_loss", "rmse", "deviance")
SEED = 1


def draft_study(
    table: Table,
    label: str,
    *,
    by: str | None = None,
    categories: Sequence[str] = (),
    numbers: Sequence[str] = (),
    label_kind: LabelKind | None = None,
    row_norm: float | None = None,
) -> Draft:
    """Draft a study from a public table.

    This is the Python form of ``dpadmm study new --from``. Bounds, values and classes are inferred from the table, so
    never pass private rows.

    Parameters
    ----------
    table : path, data frame or Arrow table
        Public table with the columns of the private tables.
    label : str
        Column to predict.
    by : str, optional
        Column that identifies the owner of each row; omitted.
    categories, numbers : sequence of str
        Columns of whole numbers that are codes, or amounts. Default: inferred.
    label_kind : {"classes", "counts", "number"}, optional
        Kind of label. Default: inferred.
    row_norm : float, optional
        Bound to which the norms of rows are clipped. Default: chosen so that few rows of the table are clipped, unless
        the forecast is better with more clipping.

    Returns
    -------
    Draft
        The draft, which a notebook shows as a table. Review it, then ``draft.confirm()`` returns the study.

    Examples
    --------
    >>> public = {"age": [23, 87, 41, 65] * 20, "ward": ["A", "B", "A", "C"] * 20, "ill": ["no", "yes"] * 40}
    >>> draft_study(public, "ill").confirm(epsilon=1.0, allow=["age", "ward"]).features
    ('age', 'ward=A', 'ward=B', 'ward=C', 'ward=other')
    """
    source = open_table(table)
    draft = draft_from_table(source, label, Answers(tuple(categories), tuple(numbers), label_kind, row_norm))
    draft = draft if by is None else draft.without(by)
    return draft if row_norm is not None else with_forecast_row_norm(draft, source)


def with_forecast_row_norm(draft: Draft, table: Table) -> Draft:
    """Return the draft with its row norm, or with the default if that has the better forecast on the public rows."""
    if draft.row_norm is None:
        return draft
    try:
        asked = [column.name for column in draft.columns if column.has_question]
        drafts = draft, replace(draft, row_norm=None)
        own, other = (_forecast(each.confirm(allow=asked), table) for each in drafts)
    except DPADMMError:  # too few public rows for a forecast
        return draft
    gain = own - other
    is_clear = float(np.mean(gain)) > max(CLEAR * _standard_error(gain), MIN_GAIN * float(np.mean(own)))
    return replace(draft, row_norm=None) if is_clear else draft


def _standard_error(values: Floats) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _forecast(study: Study, table: Table) -> Floats:
    """Return the forecast loss of the study for several seeds."""
    scenario = public_scenario(study, table, repeats=MIN_FOLDS, seed=SEED)
    sizes = np.array([ROWS_PER_PUBLIC_ROW * scenario.n_rows])
    study, losses = with_rounds_for(study, sizes), []
    for seed in range(MIN_FOLDS):
        values = forecast_settings(study, study.training, scenario, sizes, seed=SEED + 100 * seed)
        losses.append(next(values[name].mean for name in MEASURES if name in values))
    return np.array(losses)
