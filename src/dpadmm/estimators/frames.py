"""Encode data frames by the columns of a study, for estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_consistent_length, column_or_1d

from dpadmm.data.encoder import FALSE, TRUE
from dpadmm.data.reader import is_table, open_table
from dpadmm.data.schema import Label, Schema
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError, StudyError
from dpadmm.estimators.encoding import Encoding
from dpadmm.matrices.clipping import row_norms
from dpadmm.matrices.features import Features
from dpadmm.studies.study import Study
from dpadmm.training.train import as_study

HUGE = 1e4
"""Row norm, relative to the study's, at which no row is clipped."""


@dataclass(frozen=True, eq=False)
class StudyEncoding(Encoding):
    """The encoding of rows that are already encoded by a study: nothing is scaled."""

    def rows(self, features: Any) -> Features:
        return features


def study_encoding(schema: Schema) -> StudyEncoding:
    """Return the encoding of rows in this schema. Coefficients are those of the encoded features."""
    d = len(schema.features)
    infinite = np.full(d, np.inf)
    return StudyEncoding(-infinite, infinite, np.zeros(d), np.ones(d), 1.0)


class Declared(NamedTuple):
    """The columns and the label of an estimator's study."""

    schema: Schema
    label: Label


def declared_by(study: Any, **unused: Any) -> Declared | None:
    """Return the columns and the label of an estimator's study, or None without a study.

    Raise StudyError if the study has no columns, or if a parameter that the columns replace is set.
    """
    if study is None:
        return None
    declared: Study = as_study(study)
    if declared.schema is None or declared.label is None:
        raise StudyError("study has no [columns] and [label]; draft one with dpadmm.draft_study or dpadmm study new")
    if given := [name for name, value in unused.items() if value is not None]:
        raise StudyError(f"study declares the columns; leave {' and '.join(given)} out")
    return Declared(declared.schema, declared.label)


def encode_frame(estimator: Any, schema: Schema, X: Any, *y: Any, reset: bool = True, **options: Any) -> Any:
    """Return encoded rows, and labels if given, after the checks of scikit-learn for columns by name."""
    if not is_table(X):
        raise StudyError(
            "with a study, X must have named columns: a data frame of pandas or polars, or an Arrow table, not "
            f"{type(X).__name__}"
        )
    source = open_table(X)
    if len(getattr(X, "shape", ())) == 2:
        _check_feature_names(estimator, X, reset=reset)
        _check_n_features(estimator, X, reset=reset)
    elif reset:
        estimator.feature_names_in_ = np.array(source.column_names(), dtype=object)
        estimator.n_features_in_ = len(estimator.feature_names_in_)
    rows = encode_table(source, schema, None).features
    if not y:
        return rows
    labels = column_or_1d(
        check_array(y[0], ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y"), warn=True
    )
    missing = np.array([value is None or value != value for value in labels.tolist()])
    if missing.any():
        first = ", ".join(str(row + 1) for row in np.flatnonzero(missing)[:3])
        more = ", …" if np.count_nonzero(missing) > 3 else ""
        raise DataError(f"y is missing in {np.count_nonzero(missing):,} rows ({first}{more}); leave these rows out")
    check_consistent_length(labels, np.empty(rows.shape[0]))
    if rows.shape[0] < options.get("ensure_min_samples", 1):
        raise DataError(f"X has {rows.shape[0]} row; at least {options['ensure_min_samples']} are needed")
    if options.get("y_numeric") and labels.dtype.kind == "O":
        labels = labels.astype(np.float64)
    return rows, labels


def clipped_rows(schema: Schema, X: Any) -> NDArray[np.bool_]:
    """Return whether the study's row_norm clips each row."""
    wide = encode_table(X, replace(schema, row_norm=HUGE * schema.scale), None).features
    return np.asarray(row_norms(wide) * HUGE > 1.0)


def classes_of(label: Label, y: NDArray[Any]) -> Sequence[Any]:
    """Return the public classes of a label, in the type of the labels ``y``."""
    names = [str(name) for name in label.classes or ()]
    if y.dtype.kind == "b":
        words = {name: name.lower() in TRUE for name in names if name.lower() in (*TRUE, *FALSE)}
        return [words.get(name, name) for name in names]
    if y.dtype.kind in "iuf":
        try:
            return [float(name) if y.dtype.kind == "f" else int(name) for name in names]
        except ValueError:
            raise DataError(f"y has numbers, but the classes of the study are {', '.join(names[:8])}") from None
    return names
