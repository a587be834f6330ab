"""Drafts of skewed amounts, codes, counts, many values, and the row norm."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from looping import case

import dpadmm
from dpadmm.data.schema import Category, Number
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError, StudyError
from dpadmm.planning.drafting import draft_study, with_forecast_row_norm
from dpadmm.studies.drafts import draft_from_table, study_text
from dpadmm.studies.drafts.row_norm import MAX_CLIPPED
from dpadmm.studies.drafts.shapes import Numbers, is_unordered, round_log_bounds
from dpadmm.studies.drafts.table import Answers
from dpadmm.studies.reading import study_from

N = 2000
RNG = np.random.default_rng(0)
RATES = np.array([0.0, 0.1, 0.8, 0.2, 0.7, 0.1])


def table(**columns: Any) -> pd.DataFrame:
    codes = RNG.integers(1, 6, N)
    label = np.where(RNG.random(N) < RATES[codes], "yes", "no")
    return pd.DataFrame({"codes": codes, "noise": RNG.normal(size=N), "ill": label} | columns)


def about(frame: pd.DataFrame, name: str, label: str = "ill", **answers: Any) -> Any:
    draft = draft_from_table(frame, label, Answers(**answers))
    return next(column.about for column in draft.columns if column.name == name)


def test_a_skewed_amount_gets_a_logarithm() -> None:
    amounts = np.exp(RNG.normal(9, 1.2, N)).round(2)
    found = about(table(amount=amounts), "amount")
    assert found["transform"] == "log"
    assert found["center"] == pytest.approx(9, abs=0.1)
    assert found["scale"] == pytest.approx(1.2, abs=0.1)
    low, high = found["bounds"]
    assert low <= amounts.min() <= 2.5 * low
    assert high / 2.5 <= amounts.max() <= high
    huge = about(table(amount=np.exp(RNG.normal(0, 12, N))), "amount")
    assert huge["transform"] == "log"
    assert huge["center"] == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    "cells",
    [
        RNG.uniform(1, 1000, N),
        RNG.normal(100, 10, N),
        -np.exp(RNG.normal(5, 1, N)),
        np.where(RNG.random(N) < 0.5, 0.0, np.exp(RNG.normal(5, 1, N))),
        RNG.choice([1.0, 2.0, 500.0], N, p=[0.5, 0.49, 0.01]),
    ],
)
def test_other_numbers_have_no_logarithm(cells: Any) -> None:
    assert "transform" not in about(table(x=cells), "x")


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), min_size=1, max_size=5))
def test_moments_do_not_depend_on_batches(parts: list[list[float]]) -> None:
    running, whole = Numbers(), np.concatenate(parts)
    for part in parts:
        running.add(np.array(part), np.ones(len(part)))
    apart = whole - whole.mean()
    scale = max(1.0, float(np.abs(whole).max()))
    assert running.squares == pytest.approx((apart**2).sum(), abs=1e-9 * scale**2 * len(whole))
    assert running.cubes == pytest.approx((apart**3).sum(), abs=1e-8 * scale**3 * len(whole))


@given(st.floats(1e-200, 1e200), st.floats(10.0, 1e50))
def test_bounds_of_logarithms_are_outward_and_have_one_digit(low: float, ratio: float) -> None:
    below, above = round_log_bounds(low, low * ratio)
    assert 0.0 < below <= low <= low * ratio <= above
    for value, near in ((below, low / 2.5), (above, low * ratio * 2.5)):
        assert f"{value:.0e}"[0] in "125"
        assert value == float(f"{value:.0e}")
        assert (value >= near * (1 - 1e-12)) if value is below else (value <= near * (1 + 1e-12))


def test_codes_are_categories_unless_the_label_rises_with_them() -> None:
    frame = table()
    rising = RNG.random(N) < np.linspace(0, 0.9, 6)[frame["codes"]]
    assert about(frame, "codes") == {"kind": "category", "values": ("1", "2", "3", "4", "5"), "unseen": ("other",)}
    assert about(frame, "codes", numbers=("codes",))["kind"] == "number"
    assert about(table(codes=frame["codes"], ill=np.where(rising, "yes", "no")), "codes")["kind"] == "number"
    assert about(table(ill=RNG.choice(["yes", "no"], N)), "codes", categories=("codes",))["kind"] == "category"
    few = frame.iloc[:30]
    assert about(few, "codes")["kind"] == "number"  # too few rows to tell
    amounts = table(codes=frame["codes"], ill=10.0 * RATES[frame["codes"]] + RNG.normal(size=N))
    assert about(amounts, "codes")["kind"] == "category"  # the label is a number


def test_random_codes_are_rarely_called_unordered() -> None:
    rng = np.random.default_rng(1)
    found = [is_unordered(rng.integers(0, 8, 500).astype(float), rng.random(500)) for _ in range(300)]
    assert not any(found)


def test_a_model_with_codes_is_better() -> None:
    frame = table()
    accuracy = []
    for answers in (Answers(), Answers(numbers=("codes",))):
        study = draft_from_table(frame, "ill", answers).confirm()
        model = dpadmm.train(study, table(), seed=1).model
        accuracy.append(dpadmm.evaluate(model, table()).metrics["auc"])
    assert accuracy[0] > accuracy[1] + 0.1  # type: ignore[operator]


def test_counts_are_poisson() -> None:
    counts = RNG.negative_binomial(1, 0.3, N)
    draft = draft_from_table(table(visits=counts), "visits")
    assert draft.loss == "poisson"
    assert draft.label["bounds"][0] == 0
    assert draft.label["bounds"][1] >= counts.max()
    assert draft.questions[0].choices == ("classes", "counts", "number")
    study = draft.confirm()
    assert study.problem.loss.name == "poisson"
    assert study_from(tomllib.loads(study_text(draft, "x").replace("public = false", "public = true"))).classes is None
    for kind, loss in (("number", "squared"), ("classes", "softmax"), ("counts", "poisson")):
        with case(kind):
            frame = table(visits=np.minimum(counts, 15))
            assert draft_from_table(frame, "visits", Answers(label_kind=kind)).confirm().problem.loss.name == loss  # type: ignore[arg-type]
    for cells in (RNG.integers(0, 10, N), RNG.integers(20, 90, N), counts * 1000, counts + 0.5, -counts):
        with case(cells[:5]):
            assert draft_from_table(table(y=cells), "y").loss == ""


def test_an_answer_that_does_not_fit_is_one_sentence() -> None:
    for answers, words in [
        ({"categories": ("nothing",)}, "the table has no column 'nothing'"),
        ({"categories": ("ill",)}, "column 'ill' is the label; describe it with --label-kind"),
        ({"categories": ("codes",), "numbers": ("codes",)}, "column 'codes' cannot be both a category and a number"),
        ({"label_kind": "count"}, "label kind must be classes or counts or number, not 'count'"),
    ]:
        with case(words), pytest.raises(StudyError, match=words):
            draft_from_table(table(), "ill", Answers(**answers))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the label 'ill' is text, so it cannot be counts"):
        draft_from_table(table(), "ill", Answers(label_kind="counts"))
    with pytest.raises(DataError, match="fractions or negative numbers, so it cannot be counts"):
        draft_from_table(table(), "noise", Answers(label_kind="counts"))


def test_fifty_one_states_are_kept_and_rare_values_are_grouped() -> None:
    states = [f"state {chr(65 + k // 26)}{chr(65 + k % 26)}" for k in range(51)]
    found = about(table(state=RNG.choice(states, N)), "state")
    assert (found["kind"], len(found["values"])) == ("category", 51)
    rare = np.where(RNG.random(N) < 0.05, [f"rare {k}" for k in range(N)], RNG.choice(states, N))
    draft = draft_from_table(table(state=rare), "ill")
    column = next(each for each in draft.columns if each.name == "state")
    assert column.about is not None
    assert set(column.about["values"]) == set(states)
    assert "unseen" not in column.about
    assert column.comment.startswith("'other' stands for")
    text = draft_from_table(table(note=[f"note {k % 900}" for k in range(N)]), "ill")
    assert [each.comment for each in text.columns if not each.about] == ["text with 900 different values"]


def test_few_public_rows_are_clipped() -> None:
    frame = table(a=RNG.normal(size=N), b=RNG.normal(size=N), c=RNG.standard_t(3, N))
    draft = draft_from_table(frame, "ill")
    assert draft.row_norm is not None
    shares = []
    for row_norm in (None, draft.row_norm):
        study = draft.confirm()
        assert study.schema is not None
        schema = type(study.schema)(study.schema.columns, row_norm)
        report = encode_table(frame, schema, study.label).report
        shares.append(report.clipped / report.rows)
    assert shares[0] > 0.2
    assert shares[1] <= MAX_CLIPPED
    assert f"row_norm = {draft.row_norm}" in study_text(draft, "x")
    bounded = draft_from_table(frame[["codes", "ill"]], "ill")
    assert (bounded.row_norm, "row_norm" in study_text(bounded, "x")) == (None, False)


def test_the_default_row_norm_stays_if_its_forecast_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(a=RNG.normal(size=N), b=RNG.normal(size=N))
    draft = draft_from_table(frame, "ill")
    for own, other, expected in [([0.5, 0.5, 0.5], [0.4, 0.4, 0.41], None), ([0.5, 0.4, 0.6], [0.5, 0.6, 0.4], 1)]:
        losses = iter([np.array(own), np.array(other)])
        monkeypatch.setattr("dpadmm.planning.drafting._forecast", lambda study, table: next(losses))  # noqa: B023
        assert (with_forecast_row_norm(draft, frame).row_norm is None) == (expected is None)


def test_a_draft_in_python(tmp_path: Any) -> None:
    frame = table(site=RNG.choice(["a", "b"], N))
    draft = draft_study(frame, "ill", by="site")
    shown = draft._repr_html_()
    for words in ("Draft from the table", "codes", "identifies the data owner", "never taken from private rows"):
        assert words in shown
    with pytest.raises(StudyError, match="the values of the draft are not confirmed as public"):
        dpadmm.train(draft, frame)  # type: ignore[arg-type]
    study = draft.confirm(epsilon=2.0, delta=1e-6, name="flu")
    assert (study.name, study.training.epsilon, study.training.delta, study.public_rows) == ("flu", 2.0, 1e-6, None)
    assert study.schema is not None
    assert [type(column) for column in study.schema.columns] == [Category, Number]
    assert [column.name for column in draft.drop("noise").confirm().schema.columns] == ["codes"]  # type: ignore[union-attr]
    path = draft.save(tmp_path / "study.toml")
    with pytest.raises(StudyError, match="inferred from a table and are not confirmed"):
        dpadmm.read_study(path)
    leaky = draft_study(table(told=table()["ill"]).assign(told=lambda each: each["ill"]), "ill")
    with pytest.raises(StudyError, match=r"column 'told' alone determines.*Keep it with confirm\(allow=\[...\]\)"):
        leaky.confirm()
    assert "told=no" in leaky.confirm(allow=["told"]).features or "told" in leaky.confirm(allow=["told"]).features
    assert "told" not in str(leaky.drop("told").confirm().features)
