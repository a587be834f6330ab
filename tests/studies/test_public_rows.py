"""The public rows of a study: named by their bytes, confirmed like drafted values, and one sentence for a mistake."""

from __future__ import annotations

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from looping import case

from dpadmm.errors import DataError, StudyError
from dpadmm.studies.drafts import confirmed_text, draft_from_table, study_text
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.reading import confirmations, read_study, study_from, study_problems

ROWS = b"age,ill\n50,no\n60,yes\n"
SHA = sha256(ROWS).hexdigest()
TOML = f"""
format = "dpadmm-study/2"
name = "x"
[label]
column = "ill"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = [0, 120]
[public_rows]
file = "sample.csv"
sha256 = "{SHA}"
[privacy]
epsilon = 1.0
"""


def test_the_bytes_are_in_the_hash_and_the_place_is_not(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "sample.csv").write_bytes(ROWS)
        (folder / "study.toml").write_text(TOML)
    one, other = (read_study(tmp_path / name / "study.toml") for name in "ab")
    assert one.public_rows is not None
    assert one.public_rows.verified() == tmp_path / "a" / "sample.csv"
    bare = study_from(tomllib.loads(TOML.replace('file = "sample.csv"', "public = true")))
    for same in (other, bare, study_from(one.as_json())):
        assert (same.hash, same.public_rows) == (one.hash, one.public_rows)
    without = study_from(_without())
    changed = study_from(tomllib.loads(TOML.replace(SHA, SHA[::-1])))
    assert len({one.hash, without.hash, changed.hash}) == 3
    assert "public_rows" not in without.as_json()


def _without() -> dict[str, Any]:
    table = tomllib.loads(TOML)
    del table["public_rows"]
    return table


def test_a_mistake_in_the_study_is_one_sentence() -> None:
    plain = {"format": "dpadmm-study/2", "name": "x", "features": ["a"], "privacy": {"epsilon": 1.0}}
    good = {"sha256": SHA}
    for about, words in [
        ("sample.csv", "public_rows must be a table"),
        ({"file": "sample.csv"}, "public_rows: sha256 is missing"),
        ({"sha256": SHA.upper()}, "public_rows: sha256 must be text like .0-9a-f.{64}"),
        ({**good, "sha": SHA}, "public_rows: unknown setting 'sha'; did you mean 'sha256'"),
        ({**good, "file": 3}, "public_rows: file must be text, not 3"),
        ({**good, "public": "yes"}, "public_rows: public must be true or false"),
        ({**good, "public": False}, "public_rows: not confirmed as public"),
    ]:
        with case(about), pytest.raises(StudyError, match=words):
            study_from({**_without(), "public_rows": about})
        if words != "public_rows: not confirmed as public":
            assert len(study_problems({**_without(), "public_rows": about})) == 1
    with pytest.raises(StudyError, match=r"dp_admm does not use public rows; remove \[public_rows\] or use auto"):
        study_from({**_without(), "public_rows": good, "method": {"name": "dp_admm"}})
    with pytest.raises(StudyError, match=r"\[public_rows\] requires \[columns\]"):
        study_from({**plain, "public_rows": good})


def test_a_file_is_needed_where_it_is_used_and_must_have_these_bytes(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    for rows, words in [
        (PublicRows(SHA), "has no path for its public rows"),
        (PublicRows(SHA, str(path)), "sample.csv: public rows not found; copy the table to this path"),
        (PublicRows(SHA, str(tmp_path)), "public rows not found"),
    ]:
        with case(words), pytest.raises(DataError, match=words):
            rows.verified()
    path.write_bytes(ROWS + b"70,no\n")
    with pytest.raises(DataError, match=f"declares .sha256 {PublicRows.of(path).sha256[:12]}…, expected {SHA[:12]}…"):
        PublicRows(SHA, str(path)).verified()


def table(folder: Path, rows: int, missing: int = 0) -> Path:
    path = folder / "sample.csv"
    lines = [f"{20 + i % 17},{'' if i < missing else 'yes' if i % 3 else 'no'}" for i in range(rows)]
    path.write_text("\n".join(["age,ill", *lines]) + "\n")
    return path


def test_a_draft_names_its_table_as_seen_from_the_study_and_waits_for_a_word(tmp_path: Path) -> None:
    draft = draft_from_table(table(tmp_path, 60), "ill")
    for folder, file in [(tmp_path, "sample.csv"), (tmp_path / "deep" / "er", "../../sample.csv")]:
        folder.mkdir(parents=True, exist_ok=True)
        text = study_text(draft, "x", folder)
        assert tomllib.loads(text)["public_rows"]["file"] == file
        assert study_problems(tomllib.loads(text)) == []
        waiting = confirmations(tomllib.loads(text))
        assert [each.group for each in waiting] == ["label", "numbers", "public-rows"]
        rest = confirmed_text(text, {each.place for each in waiting[:2]})
        with pytest.raises(StudyError, match="public_rows: not confirmed as public"):
            study_from(tomllib.loads(rest))
        (folder / "study.toml").write_text(confirmed_text(rest, {waiting[2].place}))
        found = read_study(folder / "study.toml").public_rows
        assert found is not None
        assert found.verified().samefile(tmp_path / "sample.csv")


def test_a_draft_says_why_training_does_not_start_from_its_table(tmp_path: Path) -> None:
    for draft, why in [
        (draft_from_table(table(tmp_path, 4), "ill"), "there are only 4, fewer than 5"),
        (draft_from_table(table(tmp_path, 60, missing=2), "ill"), "2 of them have no label"),
        (draft_from_table(table(tmp_path, 60), "ill").without_public_rows(), "they are synthetic"),
    ]:
        with case(why):
            text = study_text(draft, "x")
            assert f'# The rows of "sample.csv" are not used as public rows: {why}.\n' in text
            assert "public_rows" not in tomllib.loads(text)
