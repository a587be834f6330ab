"""Commands with tables of other dialects, tables with several problems, and questions about columns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpadmm.cli import study as study_command
from dpadmm.errors import DataError
from dpadmm.studies.reading import read_study

N = 300


def write(path: Path, *, separator: str = ",", decimal: str = ".", encoding: str = "utf-8") -> Path:
    rng = np.random.default_rng(0)
    rates = np.array([0.0, 0.05, 0.9, 0.1, 0.95])
    lines = [separator.join(["", "age", "größe", "dept", "ill"])]
    for k in range(N):
        dept = int(rng.integers(1, 5))
        cells = [str(k), str(rng.integers(20, 80)), f"{rng.uniform(1, 2):.3f}".replace(".", decimal), str(dept)]
        lines.append(separator.join([*cells, "yes" if rng.random() < rates[dept] else "no"]))
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_german_export_from_draft_to_model(cli, tmp_path: Path) -> None:
    table, study, model = (tmp_path / name for name in ("t.csv", "s.toml", "m.dpadmm"))
    write(table, separator=";", decimal=",", encoding="cp1252")
    options = ("--encoding", "cp1252")
    refused = cli("study", "new", study, "--from", table, "--label", "ill")
    assert (refused.code, "not UTF-8 text" in refused.err, "--encoding" in refused.err) == (2, True, True)
    drafted = cli("study", "new", study, "--from", table, "--label", "ill", "--dummy", *options).succeeded()
    assert (
        "Detected: columns are separated by semicolons; 1,5 and 1.5 are the same number; the encoding is cp1252."
        in (words(drafted.out))
    )
    assert "The first column, without a name, is ignored: it is the index of a data frame." in words(drafted.out)
    cli("study", "confirm", study, "--all").succeeded()
    shown = cli("study", "check", study, "--data", table, *options).succeeded()
    assert "separated by semicolons" in words(shown.out)
    assert read_study(study).schema.columns[1].name == "größe"  # type: ignore[union-attr]
    cli("train", study, "-d", table, "-o", model, "--seed", 1, *options).succeeded()
    evaluated = cli("evaluate", model, "-d", table, *options, "--json").succeeded().json
    plain = write(tmp_path / "plain.csv")
    assert cli("evaluate", model, "-d", plain, "--json").succeeded().json["accuracy"] == evaluated["accuracy"]
    cli("predict", model, "-d", table, "-o", tmp_path / "p.csv", *options).succeeded()
    for option, value in (("--separator", "tab"), ("--decimal", "."), ("--separator", ";;"), ("--encoding", "klingon")):
        assert cli("evaluate", model, "-d", table, *options, option, value).code == 2
    wrong = cli("evaluate", model, "-d", table, "--encoding", "klingon")
    assert "--encoding must be the name of an encoding, such as utf-8, cp1252 or utf-16, not 'klingon'" in wrong.err


def test_train_shows_one_table_of_all_problems(cli, tmp_path: Path) -> None:
    table, study = write(tmp_path / "t.csv"), tmp_path / "s.toml"
    cli("study", "new", study, "--from", table, "--label", "ill", "--dummy").succeeded()
    cli("study", "confirm", study, "--all").succeeded()
    lines = table.read_text().splitlines()
    for row, cell in ((2, "ill?"), (5, ""), (6, "")):
        lines[row] = ",".join([*lines[row].split(",")[:-1], cell])
    lines[9] = ",secret" + lines[9][lines[9].index(",", lines[9].index(",") + 1) :]
    table.write_text("\n".join(lines))
    answer = cli("train", study, "-d", table, "-o", tmp_path / "m")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.endswith(f"dpadmm: {table} has 3 problems\n")
    for row in ("age not a number 1 9", "ill missing 2 5, 6", "ill none of the classes no, yes 1 2"):
        assert row in words(answer.err)
    assert "secret" not in answer.err
    assert "secret" in cli("study", "check", study, "--data", table).out
    assert not (tmp_path / "m").exists()


def test_ambiguous_columns_are_asked_about_on_a_terminal(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = write(tmp_path / "t.csv"), list[str]()
    kinds = {}
    for answer in ("category", "number", "codes"):
        study = tmp_path / f"{answer}.toml"

        def prompt(text: str, *, default: str, answer: str = answer, **options: Any) -> str:
            asked.append(f"{text} [{default}]")
            return answer

        monkeypatch.setattr(study_command.typer, "prompt", prompt)
        monkeypatch.setattr(sys, "stdin", Terminal())
        if answer == "codes":
            wrong = cli("study", "new", study, "--from", table, "--label", "ill", "--dummy")
            assert "column 'dept': answer category or number, not 'codes'" in wrong.err
            continue
        cli("study", "new", study, "--from", table, "--label", "ill", "--dummy").succeeded()
        kinds[answer] = '\nvalues = ["1"' in study.read_text()
    assert kinds == {"category": True, "number": False}
    assert asked == ["Is it category or number? [category]"] * 3


class Terminal:
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_flags_answer_in_scripts(cli, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv")
    for options, expected in [
        ((), True),
        (("--numbers", "dept"), False),
        (("--categories", "age, dept"), True),
    ]:
        study = tmp_path / f"{len(options)}{expected}.toml"
        cli("study", "new", study, "--from", table, "--label", "ill", "--dummy", *options).succeeded()
        assert ('\nvalues = ["1"' in study.read_text()) == expected
    wrong = cli("study", "new", tmp_path / "x.toml", "--from", table, "--label", "ill", "--label-kind", "counts")
    assert "the label 'ill' is text, so it cannot be counts" in wrong.err
    assert "require --from TABLE" in cli("study", "new", tmp_path / "y.toml", "--numbers", "a").err
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"apply to .csv and .tsv files only"):
        study_command.opened_table(tmp_path / "t.parquet", None, None, "utf-8")
