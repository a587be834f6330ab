"""PublicScaler standardises rows by public numbers, independent of the rows it is fitted on."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpadmm import DPADMMClassifier, PrivacyLeakWarning, PublicScaler
from dpadmm.errors import DataError, StudyError

RNG = np.random.default_rng(4)
PUBLIC = RNG.normal([50.0, 2.0, 0.0], [20.0, 0.1, 3.0], (200, 3))
ROWS = RNG.normal([55.0, 2.1, 1.0], [18.0, 0.2, 2.0], (100, 3))
Y = (ROWS[:, 0] > 55.0).astype(int)


@pytest.mark.parametrize(
    "scaler",
    [
        PublicScaler(center=[50.0, 2.0, 0.0], scale=[20.0, 0.1, 3.0]),
        PublicScaler(scale=2.0, bounds=(-10.0, 60.0)),
        PublicScaler(bounds=(0.0, [100.0, 3.0, 9.0])),
        PublicScaler.from_public(PUBLIC),
    ],
)
def test_scaler_does_not_depend_on_private_rows(scaler: Any) -> None:
    """Fitted on completely different rows, it transforms alike and stores none of their numbers."""
    fitted = [clone(scaler).fit(rows, y) for rows, y in ((ROWS, Y), (1e6 * ROWS[:2] - 7.0, None))]
    assert_array_equal(fitted[0].transform(ROWS), fitted[1].transform(ROWS))
    one, other = (repr({name: vars(value) if name == "_encoding" else value for name, value in vars(each).items()})
                  for each in fitted)  # fmt: skip
    assert one == other


def test_from_public_is_the_standard_scaler_of_the_public_rows() -> None:
    holes = np.column_stack([PUBLIC, np.full(200, 8.0)])
    holes[::7, 1] = np.nan
    rows = np.column_stack([ROWS, np.full(100, 9.0)])
    assert_allclose(PublicScaler.from_public(holes).fit_transform(rows), StandardScaler().fit(holes).transform(rows))


def test_bounds_clamp_and_missing_cells_stay_missing() -> None:
    scaler = PublicScaler(center=0.0, scale=[2.0, 4.0], bounds=(-4.0, 8.0)).fit(np.zeros((1, 2)))
    assert_array_equal(scaler.transform([[10.0, np.nan], [-10.0, 6.0]]), [[4.0, np.nan], [-2.0, 1.5]])
    assert_array_equal(PublicScaler(bounds=(0.0, 4.0)).fit_transform([[1.0, 9.0]]), [[-0.5, 1.0]])
    sparse = PublicScaler(scale=2.0).fit_transform(csr_array(np.eye(3)))
    assert_array_equal(sparse.toarray(), np.eye(3) / 2.0)


def test_pipeline_with_column_names_gives_no_leak_warning() -> None:
    pandas = pytest.importorskip("pandas")
    names = ["age", "dose", "days"]
    public, table = (pandas.DataFrame(rows, columns=names) for rows in (PUBLIC, ROWS))
    scaler = PublicScaler.from_public(public, bounds={"days": (-9, 9), "age": (0, 120), "dose": (0, 5)})
    model = make_pipeline(scaler, DPADMMClassifier(scale=1, classes=[0, 1])).set_output(transform="pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(table, Y)
    assert model[0].get_feature_names_out().tolist() == model[-1].feature_names_in_.tolist() == names
    assert model[-1].privacy_["read_off_the_data"] == []
    shuffled = PublicScaler.from_public(public[names[::-1]])
    assert_allclose(shuffled.fit(table).transform(table), PublicScaler.from_public(PUBLIC).fit_transform(ROWS))
    with pytest.warns(PrivacyLeakWarning, match="the norm of rows"):  # which the scaler does not bound
        make_pipeline(scaler, DPADMMClassifier(classes=[0, 1])).fit(table, Y)


def test_errors_are_one_sentence() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(StudyError, match="PublicScaler needs public numbers: set center and scale, or bounds"):
        PublicScaler().fit(ROWS)
    with pytest.raises(StudyError, match="scale of feature 2 must be a positive number"):
        PublicScaler(scale=[1.0, 0.0, 1.0]).fit(ROWS)
    with pytest.raises(StudyError, match="center by column name needs an X with column names"):
        PublicScaler({"a": 1.0}, 1.0).fit(ROWS)
    with pytest.raises(DataError, match="columns 'ward' of X must be numbers") as said:
        PublicScaler.from_public(pandas.DataFrame({"ward": ["secret"], "age": [3]}))
    assert "secret" not in str(said.value)
