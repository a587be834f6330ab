"""``python -m reproduction report`` writes a page or prints one sentence."""

from __future__ import annotations

import pytest
from looping import case


def test_page_is_written_from_a_folder_or_a_file(reproduction, comparison_folder, tmp_path):
    page = tmp_path / "new" / "report.html"
    answer = reproduction("report", comparison_folder, "-o", page).succeeded()
    assert answer.out == f"Report: {page}\n"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert f"python -m reproduction report {comparison_folder} -o report.html" in text
    page.write_text("old")
    reproduction("report", comparison_folder / "results.parquet", "-o", page).succeeded()
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_refusals_are_one_sentence(reproduction, comparison_folder, tmp_path_factory: pytest.TempPathFactory):
    for what in ["folder", "itself", "under a file", "missing", "damaged", "not ours"]:
        with case(what):
            tmp_path = tmp_path_factory.mktemp("case")
            source, output = comparison_folder, tmp_path / "report.html"
            damaged = tmp_path / "results.parquet"
            damaged.write_bytes((comparison_folder / "results.parquet").read_bytes()[:1000])
            (tmp_path / "other.parquet").write_text("a,b\n1,2\n")
            match what:
                case "folder":
                    output, words = tmp_path, "is a folder"
                case "itself":
                    output, words = comparison_folder / "results.parquet", "must end in .html or .md"
                case "under a file":
                    output, words = damaged / "report.html", "is a file"
                case "missing":
                    source, words = tmp_path / "nowhere", "there is no results file"
                case "damaged":
                    source, words = damaged, "damaged"
                case _:
                    source, words = tmp_path / "other.parquet", "not a results file"
            before = sorted(tmp_path.iterdir())
            answer = reproduction("report", source, "-o", output)
            assert answer.code == 2
            assert words in answer.err
            assert answer.err.count("\n") == 1
            assert sorted(tmp_path.iterdir()) == before
