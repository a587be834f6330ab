"""Encode labels, exposures and row weights of a table as the losses need them, and find the rows without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.cells import RowError, WordCache, as_numbers, word_codes
from dpadmm.data.encoder import Tally
from dpadmm.data.schema import Label
from dpadmm.losses.poisson import coded
from dpadmm.matrices.arrays import Floats, flush_subnormals

Issue = Literal["missing", "unknown", "not a count", "exposure", "weight"]
Issues: TypeAlias = dict[Issue, NDArray[np.bool_]]
"""Rows of a batch that cannot be used, by the kind of problem."""


@dataclass
class LabelColumns:
    """The label, exposure and weight columns of a table.

    Parameters
    ----------
    label : Label
        Declaration of the columns.
    words : WordCache
        Cache for the words of the label column.
    invalid_as_missing : bool
        Whether a cell that is not a number is missing instead of an error.
    """

    label: Label
    words: WordCache = field(default_factory=WordCache)
    invalid_as_missing: bool = False

    @property
    def roles(self) -> dict[str, str]:
        """Role of each column, by name."""
        label = self.label
        named = ((label.weight, "column of weights"), (label.exposure, "exposure"), (label.column, "label"))
        return {name: role for name, role in named if name is not None}

    @property
    def numeric(self) -> frozenset[str]:
        """Names of the columns with numbers."""
        label = self.label
        names = (label.weight, *(() if label.classes is not None else (label.column, label.exposure)))
        return frozenset(name for name in names if name is not None)

    def encode(self, batch: Any, tally: Tally) -> tuple[Floats, Floats | None, Issues]:
        """Return labels, weights (None without weights) and issues of a batch. ``tally`` counts clamped weights.

        Rows with an issue get the label of the first class, or 0, and the weight 0.
        """
        label = self.label
        raw, issues = self.read(batch.column(label.column))
        exposures = None
        if label.exposure is not None:
            exposures, exposure_issues = self.read_exposure(batch.column(label.exposure))
            issues |= exposure_issues
        values = encode_label(label, raw, exposures, bad=any_issue(issues, len(raw)))
        if not label.weighted:
            return values, None, issues
        cells = None if label.weight is None else batch.column(label.weight)
        weights, weight_issues = self.weights(cells, values, tally)
        return values, weights, issues | weight_issues

    def read(self, cells: Any) -> tuple[Floats, Issues]:
        """Return labels in the units of the table, or indices of classes (negative if there is none), and issues."""
        label = self.label
        if label.classes is not None:
            codes, places = word_codes(cells, tuple(map(str, label.classes)), label.column, self.words)
            by_row = codes[places]
            return by_row.astype(np.float64), {"missing": by_row == -2, "unknown": by_row == -1}
        values = as_numbers(cells, label.column, invalid_as_missing=self.invalid_as_missing)
        issues: Issues = {"missing": ~np.isfinite(values)}
        if label.counts:
            invalid = values < 0.0 if label.times is None else (values != 0.0) & (values != 1.0)
            issues["not a count"] = invalid & ~issues["missing"]
        return values, issues

    def read_exposure(self, cells: Any) -> tuple[Floats, Issues]:
        """Return exposures and issues."""
        exposures = as_numbers(cells, str(self.label.exposure), invalid_as_missing=self.invalid_as_missing)
        return exposures, {"exposure": ~(np.isfinite(exposures) & (exposures > 0.0))}

    def read_weight(self, cells: Any, tally: Tally) -> tuple[Floats, Issues]:
        """Return weights divided by their bound and clamped to [0, 1], and issues. ``tally`` counts clamped weights."""
        bound = self.label.weight_bound or 1.0
        given = as_numbers(cells, str(self.label.weight), invalid_as_missing=self.invalid_as_missing)
        bad = ~((given >= 0.0) & np.isfinite(given))
        tally.clamped += int(np.count_nonzero(~bad & (given > bound)))
        return np.minimum(np.where(bad, 0.0, given), bound) / bound, {"weight": bad}

    def weights(self, cells: Any, labels: Floats, tally: Tally) -> tuple[Floats, Issues]:
        """Return weights in [0, 1], including the weight of each row's class, and issues. ``labels`` are encoded."""
        weights, issues = (np.ones(len(labels)), Issues()) if cells is None else self.read_weight(cells, tally)
        if self.label.class_weight is not None:
            shares = np.array(self.label.class_shares)
            weights = weights * shares[(labels > 0.0).astype(np.intp) if len(shares) == 2 else labels.astype(np.intp)]
        flush_subnormals(weights)
        return weights, issues

    def has_other_case(self, cells: Any) -> NDArray[np.bool_]:
        """Return which cells would be a class if case were ignored."""
        classes = tuple(str(name).lower() for name in self.label.classes or ())
        codes, places = word_codes(cells, classes, self.label.column, self.words, fold=True)
        return np.asarray((codes >= 0)[places])

    def check(self, issues: Issues, cells: Any) -> None:
        """Raise RowError for the first row with an issue. ``cells`` are the labels."""
        if self.label.drop_missing_labels:
            issues = {kind: rows for kind, rows in issues.items() if kind != "missing"}
        bad = any_issue(issues, len(cells))
        if bad.any():
            index = int(np.argmax(bad))
            kind: Any = next(kind for kind, rows in issues.items() if rows[index])
            if kind == "unknown" and self.has_other_case(cells.slice(index, 1))[0]:
                kind = "other case"
            before, after = issue_message(self.label, kind)
            raise RowError(f"{before} in", index, after)


def any_issue(issues: Issues, n_rows: int) -> NDArray[np.bool_]:
    """Return which rows have an issue."""
    return np.asarray(np.logical_or.reduce([np.zeros(n_rows, dtype=bool), *issues.values()]))


def issue_message(label: Label, kind: Issue | Literal["other case"]) -> tuple[str, str]:
    """Return the message for rows with an issue, before and after the rows."""
    classes = ", ".join(map(str, (label.classes or ())[:8]))
    no_count = "negative" if label.times is None else "neither 1 (an event) nor 0"
    problems: Mapping[str, str] = {
        "missing": f"label {label.column!r} is missing",
        "unknown": f"label {label.column!r} is none of the classes {classes}",
        "other case": f"label {label.column!r} differs in capitals from the classes {classes}",
        "not a count": f"label {label.column!r} is {no_count}",
        "exposure": f"exposure {label.exposure!r} is missing, 0 or negative",
        "weight": f"weight {label.weight!r} is missing, negative or infinite",
    }
    is_class = kind in ("unknown", "other case")
    action = "correct the classes in the study, or the cells of the table" if is_class else ACTION
    if kind == "missing":
        action += f" ({DROP_HINT})"
    return f"the {problems[kind]}", f"; {action}"


ACTION = "correct the cells or leave the rows out"
DROP_HINT = "or set drop_missing_labels = true under [label]"
"""What a study can do about missing labels."""


def checked_labels(label: Label, cells: Any, exposures: Any = None) -> Floats:
    """Return the encoded labels of a batch. Raise RowError for the first invalid row."""
    columns, spent = LabelColumns(label), None
    raw, issues = columns.read(cells)
    if label.exposure is not None:
        spent, exposure_issues = columns.read_exposure(exposures)
        issues |= exposure_issues
    columns.check(issues, cells)
    return encode_label(label, raw, spent, bad=np.zeros(len(raw), dtype=bool))


def encode_label(label: Label, raw: Floats, exposures: Floats | None, *, bad: NDArray[np.bool_]) -> Floats:
    """Return labels as the losses need them; ``bad`` rows get the label of the first class, or 0."""
    if label.counts:
        spent = np.ones(len(raw)) if exposures is None else exposures
        if label.times is not None:
            raw = np.where(spent > label.longest, 0.0, raw)
        counts, spent = np.where(bad, 0.0, raw), np.where(bad, label.longest, spent)
        shares = np.minimum(spent, label.longest) / label.longest
        return coded(np.minimum(counts, label.largest) / label.largest, shares)
    if label.classes is not None:
        codes = np.maximum(raw, 0.0)
        return codes * 2.0 - 1.0 if len(label.classes) == 2 else codes
    values = np.where(bad, 0.0, raw)
    if label.bounds is not None:
        low, high = label.bounds
        values = np.where(bad, 0.0, (np.clip(values, low, high) - low) / (high - low) * 2.0 - 1.0)
    flush_subnormals(values)
    return values
