"""Drafts of studies: what is guessed, what is left out, and files that can be read back with any names."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.data.schema import Category
from dpadmm.data.schema_file import ASK
from dpadmm.data.table import encode_table
from dpadmm.errors import DPADMMError, StudyError
from dpadmm.studies.drafts import Draft, DraftColumn, draft_from_dictionary, draft_from_table, study_text
from dpadmm.studies.drafts.table import round_bounds
from dpadmm.studies.reading import study_from, study_problems
from dpadmm.studies.study import Study

N = 60
COLUMNS: dict[str, list[Any]] = {
    "age": [18 + i % 59 for i in range(N)],
    "income": [f"{1000 + 37.5 * i}" for i in range(N)],
    "ward": ["surgery" if i % 3 else "medicine" for i in range(N)],
    "kind": ["other" if i % 3 else "a" if i % 2 else "b" for i in range(N)],
    "smoker": ["Yes" if i % 2 else "no" for i in range(N)],
    "flag": [i % 2 for i in range(N)],
    "grade": [f"{i % 5}.0" for i in range(N)],
    "row": list(range(1, N + 1)),
    "patient_id": [i % 7 for i in range(N)],
    "email": [f"p{i}@x" for i in range(N)],
    "comment": [f"text {i}" for i in range(N)],
    "empty": [""] * N,
    "country": ["CH"] * N,
    "ill_since": [i % 9 for i in range(N)],
    "level": ["?" if i == 5 else str(i) for i in range(N)],
    "holes": ["NA" if i % 4 else str(i) for i in range(N)],
    "ill": ["yes" if i % 4 == 0 else "no" for i in range(N)],
}


def csv_file(folder: Path, columns: dict[str, list[Any]]) -> Path:
    path = folder / "dummy.csv"
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    return path


def confirmed(draft: Draft) -> Study:
    text = study_text(draft, "x")
    answered = text.replace("public = false", "public = true").replace(f'allow = "{ASK}"', "allow = true")
    return study_from(tomllib.loads(answered))


def test_kinds_are_guessed_and_the_rest_is_left_out_with_a_reason(tmp_path: Path) -> None:
    draft = draft_from_table(csv_file(tmp_path, COLUMNS), "ill")
    kept = {each.name: each.about for each in draft.columns if each.about}
    assert kept == {
        "age": {"kind": "number", "bounds": (10, 80), "center": 47, "scale": 17},
        "income": {"kind": "number", "bounds": (1000, 3500), "center": 2110, "scale": 650},
        "ward": {"kind": "category", "values": ("surgery", "medicine"), "unseen": ("other",)},
        "kind": {"kind": "category", "values": ("a", "b")},
        "smoker": {"kind": "boolean"},
        "flag": {"kind": "boolean"},
        "grade": {"kind": "number", "bounds": (0, 4), "center": 2, "scale": 1.4},
        "holes": {"kind": "number", "bounds": (0, 60), "center": 28, "scale": 17, "allow": ASK},  # filled in where ill
    }
    out = {each.name: each.comment for each in draft.columns if not each.about}
    assert out == {
        "row": "a running number; probably an identifier",
        "patient_id": "looks like an identifier; up to 9 rows have the same value. If it identifies persons, every "
        'owner must set, in site.toml, [person] column = "patient_id", rows = 9 (or fewer); otherwise ε protects '
        "single rows",
        "email": "looks like an identifier",
        "comment": "unique in every row; probably an identifier",
        "empty": "every cell is missing",
        "country": "'CH' in every row",
        "ill_since": "looks like the label 'ill' itself",
        "level": "unique in every row; probably an identifier",
    }
    assert draft.label == {"column": "ill", "classes": ("no", "yes")}
    text = study_text(draft, "x")
    assert '#   "email": looks like an identifier' in text
    assert text.count("public = false  # confirm: public?") == 8  # the rows of the table too
    with pytest.raises(StudyError, match="the label 'ill', column 'age', column 'income', column 'ward'"):
        study_from(tomllib.loads(text))


def test_a_value_that_says_other_is_the_catch_all_and_only_an_empty_one_is_unseen(tmp_path: Path) -> None:
    cells = {"a": ["x", "Other", "y"], "b": ["x", "", "y"], "c": ["x", "y", "x"], "ill": ["no", "yes", "no"]}
    path = csv_file(tmp_path, {name: each * 20 for name, each in cells.items()})
    study = confirmed(draft_from_table(path, "ill"))
    assert study.schema is not None
    assert study.schema.columns == (
        Category("a", ("x", "y")),
        Category("b", ("x", "y")),
        Category("c", ("x", "y"), ("other",)),
    )
    table = encode_table(path, study.schema, study.label)
    held = dict(zip(study.schema.features, (np.asarray(table.features) != 0.0).sum(axis=0).tolist(), strict=True))
    assert [name for name, n in held.items() if n == 0] == ["c=other"]
    assert [tally.unknown for tally in table.report.columns.values()] == [0, 0, 0]


def test_a_column_that_alone_tells_the_label_waits_for_an_answer(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for code in [("yes", "no"), ("dead", "alive"), ("2", "1"), ("0.7", "0.1")]:
        with case(code):
            tmp_path = tmp_path_factory.mktemp("case")
            cells = [code[0] if each == "yes" else code[1] for each in COLUMNS["ill"]]
            columns = {"age": COLUMNS["age"], "outcome": cells, "ill": COLUMNS["ill"]}
            draft = draft_from_table(csv_file(tmp_path, columns), "ill")
            assert [each.name for each in draft.columns if each.has_question] == ["outcome"]
            text = study_text(draft, "x").replace("public = false", "public = true")
            question = "alone determines the label in 60 of 60 rows: is it known before the outcome?"
            assert f"[columns.outcome]\n# {question}\n" in text
            waiting = "column 'outcome': is it known before the outcome"
            with pytest.raises(StudyError, match=waiting):
                study_from(tomllib.loads(text))
            (problem,) = study_problems(tomllib.loads(text))
            assert problem.startswith(waiting)
            allowed = tomllib.loads(text.replace(f'allow = "{ASK}"', "allow = true"))
            assert study_problems(allowed) == []
            assert study_from(study_from(allowed).as_json()).hash == study_from(allowed).hash


def test_a_confirmed_draft_encodes_its_table(tmp_path: Path) -> None:
    path = csv_file(tmp_path, COLUMNS)
    study = confirmed(draft_from_table(path, "ill"))
    assert study.schema is not None
    assert study.training.intercept
    found = encode_table(path, study.schema, study.label, intercept=True)
    assert found.features.shape == (N, study.shape[0])
    counts = {(each.clamped, each.unknown) for name, each in found.report.columns.items() if name != "kind"}
    assert counts == {(0, 0)}


def test_parquet_gives_the_same_draft_and_strange_types_are_left_out(tmp_path: Path) -> None:
    small = {name: COLUMNS[name] for name in ("age", "ward", "smoker", "flag", "ill")}
    path = tmp_path / "dummy.parquet"
    extra = {
        "born": [date(2000, 1, 1)] * N,
        "list": [[1]] * N,
        "coded": pa.array(COLUMNS["ward"]).dictionary_encode(),
        "true": [i % 2 == 0 for i in range(N)],
    }
    pa.parquet.write_table(pa.table({**small, **extra}), path)
    draft = draft_from_table(path, "ill")
    from_csv = draft_from_table(csv_file(tmp_path, small), "ill")
    assert draft.columns[:4] == from_csv.columns
    assert draft.label == from_csv.label
    rest = {each.name: each.about for each in draft.columns[4:]}
    assert draft.columns[4].comment.startswith("dates")
    assert rest == {
        "born": None,
        "list": None,
        "coded": {"kind": "category", "values": ("surgery", "medicine"), "unseen": ("other",)},
        "true": {"kind": "boolean"},
    }


def test_labels(tmp_path_factory: pytest.TempPathFactory) -> None:
    for cells, wanted, loss in [
        (["0", "1"], {"classes": (0, 1)}, "logistic"),
        (["1.0", "0.0"], {"classes": (0, 1)}, "logistic"),
        (["-1", "1"], {"classes": (-1, 1)}, "logistic"),
        (["True", "False"], {"classes": ("False", "True")}, "logistic"),
        (["<=50K", "<=50K", ">50K"], {"classes": ("<=50K", ">50K")}, "logistic"),
        (["3", "1", "2"], {"classes": (1, 2, 3)}, "softmax"),
        (["a", "b", "c", "c"], {"classes": ("c", "a", "b")}, "softmax"),
        (["0.5", "1.25"], {"bounds": (0.5, 1.3)}, "squared"),
        ([str(i) for i in range(30)], {"bounds": (0, 30)}, "squared"),
    ]:
        with case(cells, wanted, loss):
            tmp_path = tmp_path_factory.mktemp("case")
            draft = draft_from_table(csv_file(tmp_path, {"a": [i % 2 for i in range(len(cells))], "y": cells}), "y")
            assert draft.label == {"column": "y", **wanted}
            study = confirmed(draft)
            assert study.training.loss.name == loss


def test_what_cannot_be_drafted_is_a_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for columns, words in [
        ({"a": [1, 2], "y": ["", ""]}, "the label 'y' has no value in any row"),
        ({"a": [1, 2], "y": ["no", "no"]}, "is 'no' in every row; use a table with at least two classes"),
        ({"a": [0, 1] * 30, "y": [f"t{i}" for i in range(60)]}, "the label 'y' has 60 different values"),
        ({"a": [1, 2], "z": [1, 2]}, "has no column 'y'"),
        ({"a": [1, 1], "y": ["no", "yes"]}, "no usable column except the label"),
        ({"a": ['"1,5"', '"2,5"'], "y": ["no", "yes"]}, "decimals are written with a point"),
        ({"a": ['"x\ny"', "z"], "y": ["no", "yes"]}, "'a' has a value that is not printable text"),
        ({"a": ["x" * 201, "z"], "y": ["no", "yes"]}, "'a' has a value that is not printable text"),
        ({"a": ["x", "z"], "y": ["no", '"y\nes"']}, "'y' has a value that is not printable text"),
        ({"a": [], "y": []}, "has no rows"),
        ({"a": [1, 2], "b\tc": [1, 2], "y": ["no", "yes"]}, "a column name must be printable text"),
        ({"a": [1, 2], "": [1, 2], "y": ["no", "yes"]}, "a column name must be printable text"),
        ({**{f"c{i}": [i] for i in range(20_000)}, "y": ["no"]}, "has 20,001 columns, but a draft has"),
    ]:
        with case(columns, words):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DPADMMError, match=words) as refused:
                draft_from_table(csv_file(tmp_path, columns), "y")
            assert "\n" not in str(refused.value)


def test_a_repeated_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dummy.csv"
    path.write_text("a,a,y\n1,2,no\n")
    with pytest.raises(DPADMMError, match="'a' occurs more than once"):
        draft_from_table(path, "y")


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_bounds_are_rounded_outwards(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    found = round_bounds(low, high)
    assert found[0] <= low <= high <= found[1]
    assert found[0] < found[1]
    if low >= 0.0:
        assert found[0] >= 0.0
    if high > low and 1e-200 < high - low < 1e200:
        assert found[1] - found[0] <= 1.500001 * (high - low)  # two steps beyond four or more


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable() and name == name.strip())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(NAMES, min_size=2, max_size=5, unique=True),
    st.lists(NAMES.filter(lambda value: value != "other"), min_size=2, max_size=30, unique=True),
    st.tuples(st.floats(-1e15, 0), st.floats(1e-3, 1e15)),
    NAMES,
    st.text(max_size=60),
)
def test_any_name_and_value_can_be_read_back(
    names: list[str], values: list[str], bounds: tuple[float, float], title: str, comment: str
) -> None:
    label, *rest = (f"x{i} {name}" for i, name in enumerate(names))
    abouts = [{"kind": "category", "values": tuple(values)}, {"kind": "number", "bounds": bounds}]
    columns = tuple(DraftColumn(name, abouts[i % 2], comment) for i, name in enumerate(rest))
    left_out = DraftColumn(title, None, "unique in every row")
    target = {"column": label, "classes": tuple(values[:2])}
    draft = Draft((*columns, left_out), target, comment, is_inferred=True)
    found = tomllib.loads(study_text(draft, title))
    assert found["name"] == title
    assert found["label"] == {"column": label, "classes": values[:2], "public": False}
    assert list(found["columns"]) == rest
    for each in columns:
        said = found["columns"][each.name]
        assert said.pop("public") is False
        assert {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()} == each.about


DICTIONARY = """name,kind,low,high,values,description,role,transform,missing
age,number,0,120,,Age in years,,,indicator
income,numeric,100,1e6,,"Income, net",,log,
stage,Ordinal,,,I|II|III,,,,
sex,categorical,,,f|m|other,,,,
smoker,bool,,,,,,,
note,text,,,,Free text,,,
patient_id,integer,1,9,,,,,
zip,category,,,1|2,,out,,
ill,category,,,no|yes,What is predicted,label,,
"""


def test_a_dictionary_needs_no_confirmation(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.csv"
    path.write_text(DICTIONARY)
    text = study_text(draft_from_dictionary(path), "x")
    assert "public = false" not in text
    assert "# Age in years" in text
    study = study_from(tomllib.loads(text))
    assert study.features == (
        "age", "age missing", "income", "stage", "sex=f", "sex=m", "sex=other", "smoker",
    )  # fmt: skip
    assert study.classes == ("no", "yes")
    assert '"note": kind' in text
    assert '"zip": role out in the dictionary' in text
    again = draft_from_dictionary(path, "ill")
    assert study_text(again, "x") == text


def test_a_mistake_in_a_dictionary_is_a_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for old, new, words in [
        ("0,120", ",120", "'age' requires a number as low, not an empty cell"),
        ("0,120", "x,120", "'age' requires a number as low, not 'x'"),
        ("0,120", "120,0", "column 'age': bounds must rise"),
        ("0,120", "0,nan", "column 'age': bounds must be finite"),
        ("I|II|III", "", "'stage' of kind Ordinal requires values"),
        ("I|II|III", "I|I", "'I' is there twice"),
        (",label,", ",,", "no label; name the column to predict"),
        ("no|yes", "", "the label 'ill' requires values"),
        ("name,kind", "nme,kind", "requires exactly one column 'name'; did you mean 'nme'"),
        ("smoker,bool", "age,bool", "column 'age' is listed twice"),
        ("smoker,bool,,,,,,,", "smoker,bool", "line 6: 2 cells, but 9 headings"),
        (",log,", ",sqrt,", "transform must be none or log"),
        (DICTIONARY[DICTIONARY.index("age") :], "", "lines after its header"),
    ]:
        with case(old, new, words):
            tmp_path = tmp_path_factory.mktemp("case")
            assert old in DICTIONARY
            path = tmp_path / "dictionary.csv"
            path.write_text(DICTIONARY.replace(old, new, 1))
            with pytest.raises(DPADMMError, match=words) as refused:
                study_text(draft_from_dictionary(path), "x")
            assert "\n" not in str(refused.value)


def test_drafts_are_for_auto_and_the_paper_s_method_is_one_word_away() -> None:
    columns = tuple(DraftColumn(f"x{j}", {"kind": "boolean"}) for j in range(9))
    for label in ({"classes": ("a", "b")}, {"classes": ("a", "b", "c")}, {"bounds": (0, 1)}):
        text = study_text(Draft(columns, {"column": "y", **label}, "t.csv"), "x")
        study = study_from(tomllib.loads(text))
        assert (study.training.method.name, study.training.n_rounds, dict(study.provenance)) == ("auto", None, {})
        assert "dpadmm plan --write" in text
        other = study_from(tomllib.loads(text.replace('name = "auto"', 'name = "dp_admm"')))
        assert (other.training.method.name, other.training.n_rounds) == ("dp_admm", 100)


def drafted(folder: Path, cells: list[Any], name: str = "x") -> DraftColumn:
    """The draft of one column of 200 cells, which the given ones fill again and again."""
    columns = {
        name: (cells * 200)[:200],
        "z": [0, 1, 1, 0, 0] * 40,
        "y": ["no", "no", "yes", "no", "yes", "yes", "no"] * 28 + ["no"] * 4,
    }
    return draft_from_table(csv_file(folder, columns), "y").columns[0]


def test_codes_for_missing_numbers_are_named_and_kept_out(tmp_path: Path) -> None:
    usual = [1.5, 2.5, 3, 4, 5.5, 6.25]
    plain = drafted(tmp_path, usual)
    assert plain.about == {"kind": "number", "bounds": (1.5, 6.5), "center": 3.8, "scale": 1.7}
    for code in (-9, -99, 999, 9999.0, -888):
        with case(code):
            found = drafted(tmp_path, [*usual * 3, code])
            assert found.about == plain.about
            assert found.comment.startswith(f"{code:.0f} in 10 rows: far from all other numbers")
    two = drafted(tmp_path, [*usual * 3, -99, 999])
    assert two.about == plain.about
    assert two.comment.startswith("-99 in 10 rows and 999 in 10 rows")
    for cells in ([-20, -9, 3, 8], [10, 99, 70, 55], [0, 99], [-99, -60.5, -20]):
        with case(cells):
            found = drafted(tmp_path, cells)
            assert "far from" not in found.comment
            assert found.about is not None
            assert found.about["bounds"][0] <= min(cells) <= max(cells) <= found.about["bounds"][1]


def test_a_number_that_hardly_varies_has_bounds_alone(tmp_path: Path) -> None:
    assert drafted(tmp_path, [*[0] * 99, 1.5]).about == {"kind": "number", "bounds": (0, 1.6)}
    assert drafted(tmp_path, [*[0] * 40, 1e12]).about is not None
    huge = drafted(tmp_path, [-1.7e308, 1e308, 3.0]).about
    assert huge is None or "center" not in huge


def test_whole_numbers_may_be_codes(tmp_path: Path) -> None:
    for cells, name, hinted in [
        ([11, 12, 21, 35, 90], "x", True),
        ([10, 20, 30, 40, 100], "x", True),
        ([10, 20, 30, 40], "dose", False),
        ([9, 12, 14, 16, 17, 18, 20], "years", False),
        ([1, 2, 3, 4], "unit_code", True),
        (list(range(8000, 8150, 2)), "zip", True),
        (list(range(8000, 8150, 2)), "price", False),
        ([1.5, 2.5, 9.5], "type", False),
    ]:
        with case(cells, name):
            assert ("if these are codes" in drafted(tmp_path, cells, name).comment) == hinted
    assert 'kind = "category", values = ["11", "12", "21"]' in drafted(tmp_path, [11, 12, 21], "code").comment


def test_whole_numbers_may_number_persons_with_several_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    n = 900
    cells: dict[str, list[Any]] = {
        "subject": rng.integers(40_000, 90_000, n // 3).repeat(3).tolist(),
        "who": rng.permutation(np.arange(n // 3).repeat(3) + 1).tolist(),
        "badge": rng.permutation(np.arange(n // 2).repeat(2) + 20_000).tolist(),
        "age": rng.integers(18, 91, n).tolist(),
        "days": rng.geometric(0.03, n).tolist(),
        "income": rng.integers(0, 100_000, n).tolist(),
        "persons": rng.integers(1, 8, n).tolist(),
        "ill": rng.choice(["no", "yes"], n).tolist(),
    }
    draft = draft_from_table(csv_file(tmp_path, cells), "ill")
    asked = {each.name: each.comment for each in draft.columns if "identify persons or records" in each.comment}
    assert asked.keys() == {"subject", "who", "badge"}
    assert '[person] column = "who", rows = 3' in asked["who"]
    assert all(each.about for each in draft.columns)


def test_dates_and_times_are_left_out_as_such(tmp_path: Path) -> None:
    dates = [
        ["2020-01-31", "2021-12-01"], ["31.12.2020", "1.2.2021"], ["12/31/20", "1/2/21"], ["20201231", "19990101"],
        ["2020-01-31T10:30:00Z", "2021-12-01 11:00"], ["Dec-2015", "Jan-2016"], ["3 May 2020", "12 June 2021"],
        ["2020-01", "2020-02"], ["May 3, 2020", ""],
    ]  # fmt: skip
    for cells in dates:
        with case(cells):
            found = drafted(tmp_path, [f'"{each}"' for each in cells])
            assert (found.about, found.comment.partition(";")[0]) == (None, "dates")
    found = drafted(tmp_path, ["10:30", "9:15:00", "11:00 pm"])
    assert (found.about, found.comment.partition(";")[0]) == (None, "times of day")
    for cells in (["may", "june", "march"], ["1.5", "2.25"], ["1-2", "3-4"], ["2019", "2020"], ["1.2.3", "a"]):
        with case(cells):
            assert drafted(tmp_path, cells).about is not None


def test_a_label_of_counts_is_asked_about(tmp_path: Path) -> None:
    columns = {"a": [i % 2 for i in range(N)], "y": [[0, 1, 2, 7][i % 4] for i in range(N)]}
    draft = draft_from_table(csv_file(tmp_path, columns), "y")
    assert draft.label["classes"] == (0, 1, 2, 7)
    (question,) = draft.comments
    assert 'bounds = [0, 7], and set name = "squared" under [loss]' in question
    text = study_text(draft, "x").replace("classes = [0, 1, 2, 7]", "bounds = [0, 7]").replace('"softmax"', '"squared"')
    assert study_from(tomllib.loads(text.replace("public = false", "public = true"))).classes is None
    for cells in ([0, 1], [-1, 0, 1], ["a", "b", "c"]):
        columns["y"] = (cells * N)[:N]
        assert draft_from_table(csv_file(tmp_path, columns), "y").comments == ()


def test_a_draft_contains_the_settings_of_missed_rounds_as_comments(tmp_path: Path) -> None:
    draft = draft_from_table(csv_file(tmp_path, COLUMNS), "ill")
    text = study_text(draft, "x").replace("public = false", "public = true").replace(f'allow = "{ASK}"', "allow = true")
    assert study_from(tomllib.loads(text)).allow_missed_rounds is False
    for key in ("allow_missed_rounds", "quorum", "deadline"):
        assert text.count(f"\n# {key} = ") == 1
        text = text.replace(f"\n# {key} = ", f"\n{key} = ")
    study = study_from(tomllib.loads(text))
    assert (study.allow_missed_rounds, study.quorum, study.deadline) == (True, 3, 60)
