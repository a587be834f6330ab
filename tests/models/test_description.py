"""Private statistics: consistent, unbiased except for clipping at 0, with correct standard errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looping import case

from dpadmm.data.schema import Boolean, Category, Label, Number, Schema
from dpadmm.errors import DataError, StudyError
from dpadmm.methods import Released, StatisticsRelease
from dpadmm.models.description import (
    Description,
    description_from,
    description_of,
    draft_from_statistics,
    load_description,
    project_to_total,
    scale_to_margins,
)
from dpadmm.models.run import Result
from dpadmm.studies.drafts import study_text
from dpadmm.studies.reading import read_study, study_from
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.training.train import encode, run_study

N = 3000
COLUMNS = Schema((Number("age", (0.0, 100.0)), Category("ward", ("a", "b", "c")), Boolean("ill")))


def study(epsilon: float = 1.0, **more: Any) -> Study:
    method = StatisticsRelease(tables=(("ward", "ill"),), bins=10)
    return Study(
        name="ward book", schema=COLUMNS, training=Training(method=method, epsilon=epsilon, delta=1e-6), **more
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ages of 50 ± 12, a tenth missing; ward b has no row, and rows in ward c are ill more often."""
    rng, path = np.random.default_rng(1), tmp_path_factory.mktemp("t") / "t.csv"
    lines = ["age,ward,ill"]
    for _ in range(N):
        ward = rng.choice(["a", "c"])
        age = "" if rng.random() < 0.1 else f"{rng.normal(50, 12):.2f}"
        lines.append(f"{age},{ward},{'yes' if rng.random() < (0.2 if ward == 'a' else 0.6) else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def result(table: Path) -> Result:
    agreed = study()
    return run_study(agreed, encode(agreed, table), seed=3)


def exact(table: Path) -> Description:
    """Return the release without noise."""
    agreed = study()
    rows = encode(agreed, table)
    sums = rows.features.toarray().sum(axis=0, dtype=float)  # type: ignore[union-attr]
    return Description(agreed, Released(N, 0.0, sums), True, {})


def test_without_noise_it_is_the_plain_description(table: Path) -> None:
    found = exact(table)
    cells = [line.split(",") for line in table.read_text().splitlines()[1:]]
    ages = np.array([float(age) for age, *_ in cells if age])
    age = found.columns["age"]
    assert age.missing == pytest.approx(N - len(ages), abs=0.01)
    assert age.mean is not None
    assert age.sd is not None
    assert age.quantiles is not None
    assert age.mean.value == pytest.approx(ages.mean(), abs=1e-3)
    assert age.sd.value == pytest.approx(ages.std(), abs=1e-3)
    assert age.mean.noise_se == 0.0
    assert age.mean.se == pytest.approx(ages.std() / len(ages) ** 0.5, rel=1e-3)
    for level, each in age.quantiles.items():
        assert each.value == pytest.approx(np.quantile(ages, level), abs=1.0)
    np.testing.assert_allclose(age.counts[:-1], np.histogram(ages, np.linspace(0, 100, 11))[0], atol=0.01)
    pairs = [[sum(c[1:] == [ward, ill] for c in cells) for ill in ("no", "yes")] for ward in "ac"]
    np.testing.assert_allclose(found.tables[0].counts[[0, 2], :2], pairs, atol=0.01)


def test_counts_are_not_negative_and_agree(result: Result) -> None:
    for all_count in (True, False):
        found = description_of(result, all_count=all_count)
        with case(all_count):
            for column in found.columns.values():
                assert column.counts.min() >= 0.0
                assert column.counts.sum() == pytest.approx(found.total.value)
            (crossed,) = found.tables
            assert crossed.counts.min() >= 0.0
            np.testing.assert_allclose(crossed.counts.sum(axis=1), found.columns["ward"].counts, atol=1e-5)
            np.testing.assert_allclose(crossed.counts.sum(axis=0), found.columns["ill"].counts, atol=1e-5)
    assert description_of(result, all_count=True).total.value == N


def test_standard_errors_are_correct(table: Path) -> None:
    """Over 200 draws of the noise, about 95% of unclipped estimates are within 1.96 standard errors."""
    truth, agreed, rng = exact(table), study(), np.random.default_rng(5)
    noise = 2.0 * agreed.noise_multiplier
    misses: dict[str, list[float]] = {}
    for _ in range(200):
        sums = truth.released.sums + rng.normal(0.0, noise, truth.released.sums.shape)
        for all_count in (True, False):
            found = Description(agreed, Released(N, noise, sums), all_count, {})
            for name in ("age", "ward"):
                one, other = found.columns[name], truth.columns[name]
                bin = 5 if name == "age" else 2
                misses.setdefault(f"{name} {all_count}", []).append(
                    (one.counts[bin] - other.counts[bin]) / one.noise_se
                )
            one, other = found.columns["age"], truth.columns["age"]
            for what in ("mean", "sd"):
                here, there = getattr(one, what), getattr(other, what)
                misses.setdefault(f"{what} {all_count}", []).append((here.value - there.value) / here.noise_se)
            assert one.quantiles is not None
            assert other.quantiles is not None
            for level in (0.25, 0.5, 0.75):
                here, there = one.quantiles[level], other.quantiles[level]
                misses.setdefault(f"{level} {all_count}", []).append((here.value - there.value) / here.noise_se)
            cell = (found.tables[0].counts[2, 1] - truth.tables[0].counts[2, 1]) / found.tables[0].noise_se
            misses.setdefault(f"cell {all_count}", []).append(cell)
            if not all_count:
                misses.setdefault("total", []).append((found.total.value - N) / found.total.noise_se)
    for name, each in misses.items():
        with case(name):
            biased = name.split()[0] in ("ward", "cell", "total")  # empty values are cut at 0, and all rows count
            assert abs(np.mean(each)) < (0.6 if biased else 0.2)
            assert 0.5 < np.sqrt(np.mean(np.square(each))) < 1.15


def test_a_results_file_is_a_round_trip(result: Result, tmp_path: Path) -> None:
    found = description_of(result, all_count=True)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(found.to_dict()))
    again = load_description(path)
    assert again.to_dict() == json.loads(path.read_text()) == json.loads(json.dumps(found.to_dict()))
    assert found.sentence.startswith("This result is (1, 1e-06)-differentially private for every person with one row")
    assert "in an experiment: the noise was simulated" in found.sentence


def test_damaged_files_are_one_sentence(result: Result, tmp_path: Path) -> None:
    good = json.loads(json.dumps(description_of(result, all_count=True).to_dict()))
    released = good["released"]
    for said, wrong in (
        ("not a file of private statistics", []),
        ("format must be", {**good, "format": "x"}),
        ("damaged", {**good, "released": {**released, "sums": released["sums"][1:]}}),
        ("damaged", {**good, "released": {**released, "sums": ["x"]}}),
        ("damaged", {**good, "released": {**released, "n_rows": 0}}),
        ("damaged", {**good, "released": {**released, "n_rows": True}}),
        ("damaged", {**good, "released": {**released, "noise_std": -1.0}}),
        ("damaged", {**good, "released": {**released, "noise_std": 1e400}}),
        ("damaged", {**good, "released": {**released, "all_count": 1}}),
        ("damaged", {name: value for name, value in good.items() if name != "privacy"}),
        ("kind must be one of training", {**good, "study": {**good["study"], "kind": "x"}}),
    ):
        with case(said, str(wrong)[:40]), pytest.raises((DataError, StudyError), match=said):
            description_from(wrong, "f.json")
    (tmp_path / "f.json").write_text("no JSON")
    with pytest.raises(DataError, match="not a file of private statistics"):
        load_description(tmp_path / "f.json")


def test_too_much_noise_is_refused_before_anything_is_released(table: Path) -> None:
    agreed = study(epsilon=0.05)
    with pytest.raises(
        StudyError, match=r"statistics: counts would have noise of ±\d+ among 3,000 rows.*ε about .*rows"
    ):
        run_study(agreed, encode(agreed, table))
    study(epsilon=1.0).check_rows(N)
    with pytest.raises(StudyError, match="noise of ±"):
        study(epsilon=1.0).check_rows(100)
    with pytest.raises(StudyError, match="noise of ±"):  # each of them adds its own noise
        study(epsilon=0.15).check_rows(*[300] * 10)
    shared = study(epsilon=0.15).training.with_changes(aggregation="secure", min_honest_sites=8)
    masked = replace(study(epsilon=0.15), training=shared, max_rows_per_site=300)
    masked.check_rows(*[300] * 10)


def test_drafts_have_centers_and_scales_that_are_marked_as_released(result: Result, tmp_path: Path) -> None:
    found = description_of(result, all_count=True)
    draft = draft_from_statistics(found, "ill")
    text = study_text(draft, "drafted", tmp_path)
    path = tmp_path / "draft.toml"
    path.write_text(text)
    agreed = read_study(path)
    assert agreed.label == Label("ill", classes=("false", "true"))
    assert agreed.schema is not None
    age = agreed.schema.columns[0]
    assert isinstance(age, Number)
    assert (age.center, age.scale) == (pytest.approx(50.0, abs=2.0), pytest.approx(12.0, abs=2.0))
    assert age.missing == "indicator"
    assert text.count(f'released = "{found.study.hash}"') == 1
    assert "whose ε adds to this study's" in text
    assert "hardly any rows, or none: b" in text
    with pytest.raises(StudyError, match="has no column 'il'"):
        draft_from_statistics(found, "il")
    path.write_text(text.replace(found.study.hash, "x"))
    with pytest.raises(StudyError, match="released must be the hash of a statistics study, not 'x'"):
        read_study(path)


def test_a_standard_deviation_below_the_noise_is_none(table: Path) -> None:
    truth = exact(table)
    found = Description(truth.study, replace(truth.released, noise_std=400.0), True, {})
    assert found.columns["age"].sd is None
    assert found.columns["age"].to_dict()["sd"] is None
    draft = draft_from_statistics(found, "ill")
    assert "center" not in (draft.columns[0].about or {})


def test_results_of_other_kinds_are_refused(result: Result) -> None:
    plain = Study(name="x", features=("a",), training={"epsilon": 1.0})  # type: ignore[arg-type]
    with pytest.raises(StudyError, match='must be "statistics", not "training"'):
        description_of(replace(result, of_study=plain), all_count=True)


def test_counts_are_projected_to_the_nearest_non_negative_ones() -> None:
    rng = np.random.default_rng(2)
    for size in (2, 5, 30):
        for _ in range(20):
            values = rng.normal(3.0, 5.0, size)
            total = float(rng.uniform(1.0, 4.0 * size))
            found = project_to_total(values, total)
            assert found.min() >= 0.0
            assert found.sum() == pytest.approx(total)
            for _ in range(20):  # nobody is nearer
                other = rng.dirichlet(np.ones(size)) * total
                assert np.linalg.norm(found - values) <= np.linalg.norm(other - values) + 1e-9


def test_tables_are_scaled_to_their_margins() -> None:
    rows, columns = np.array([10.0, 0.0, 5.0]), np.array([9.0, 6.0])
    for table in (np.full((3, 2), -4.0), np.array([[9.0, 1.0], [3.0, -8.0], [0.0, 5.0]])):
        found = scale_to_margins(table, rows, columns)
        assert found.min() >= 0.0
        np.testing.assert_allclose(found.sum(axis=1), rows, atol=1e-6)
        np.testing.assert_allclose(found.sum(axis=0), columns, atol=1e-6)


def test_rounds_share_the_budget_without_bias(table: Path) -> None:
    agreed = study()
    several = replace(agreed, training=agreed.training.with_changes(n_rounds=4))
    one, four = (run_study(each, encode(each, table), seed=1) for each in (agreed, several))
    assert four.privacy.epsilon == pytest.approx(one.privacy.epsilon)
    noise = [description_of(each, all_count=True).noise for each in (one, four)]
    assert noise[0] == pytest.approx(noise[1], rel=1e-9)
    assert study_from(several.as_json()) == several
