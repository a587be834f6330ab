"""``python -m benchmarks.accuracy``: a table of runs and a page, resumed, and one method again."""

from __future__ import annotations

from dataclasses import replace
from shutil import copytree

import pytest
from looping import case

from benchmarks.accuracy import suite as accuracy
from benchmarks.accuracy.__main__ import app
from dpadmm.cli import run_app
from reproduction.results import read_results, write_results

pytestmark = pytest.mark.usefixtures("workers_forked")


@pytest.fixture
def program(in_process):
    return in_process(lambda: run_app(app), "accuracy")


@pytest.fixture
def few(monkeypatch):
    """Few rounds, rows and agents."""
    for name, contender in list(accuracy.CONTENDERS.items()):
        short = replace(contender, settings=lambda entry, of=contender: {**of.settings(entry), "n_rounds": 3})
        monkeypatch.setitem(accuracy.CONTENDERS, name, short)
    monkeypatch.setattr(accuracy, "AGENTS", (1, 2))
    monkeypatch.setattr(accuracy, "MOST_ROWS", 400)


def suite(program, folder, *words, sets="correlated"):
    named = ["--sets", sets, "--quick", "--repeats", "2", "-o", folder]
    return program(*named, *words)


@pytest.fixture
def made(program, few, once, tmp_path):
    """A folder with the suite's runs on one data set, which were made once for all tests."""
    folder = once("suite", lambda folder: suite(program, folder).succeeded())
    return copytree(folder, tmp_path / "made")


def test_the_suite_writes_its_lines_and_its_page(program, few, tmp_path):
    answer = suite(program, tmp_path, "--json", sets="correlated,separable").succeeded()
    assert answer.json["cells"] == 4
    lines = accuracy.read_lines(tmp_path / "accuracy.csv")
    # three learning rates are tuned; secure aggregation is for several agents
    assert len(lines) == 2 * 2 * (2 * 9 + 1 + 1)
    spent = [line.total_epsilon for line in lines if line.contender != "optimum"]
    assert spent == pytest.approx([1.0] * len(spent), abs=1e-3)
    text = (tmp_path / "accuracy.md").read_text()
    assert text.startswith("# Accuracy")
    assert "### separable" in text
    before = read_results(tmp_path / "correlated").to_table()
    assert "auto is behind" in suite(program, tmp_path, sets="correlated,separable").succeeded().out
    assert read_results(tmp_path / "correlated").to_table().equals(before)  # nothing was run again


def test_only_makes_one_method_s_runs_again(program, made):
    before = read_results(made / "correlated")
    suite(program, made, "--only", "auto").succeeded()
    after = read_results(made / "correlated")
    for name, same in (("auto", False), ("dp_sgd", True), ("optimum", True)):
        with case(name):
            old, new = (each.select(name).frame["wall_seconds"].tolist() for each in (before, after))
            assert len(old) == len(new)
            assert (old == new) == same


def test_a_folder_from_before_a_contender_is_resumed(program, made):
    path = made / "correlated" / "results.parquet"
    whole = read_results(path)
    grid = {**whole.grid, "experiments": {k: v for k, v in whole.grid["experiments"].items() if k != "auto_secure"}}
    old = whole.select(cell=[key for each in grid["experiments"].values() for key in each["cells"]])
    assert len(old.cells) == len(whole.cells) - 2
    about = {"grid": grid, "data": whole.meta["data"], "command": whole.meta["command"]}
    write_results(path, old.to_table(), **about)
    suite(program, made).succeeded()
    new = read_results(path)
    assert new.select(cell=old.cells).to_table().equals(old.to_table())  # nothing of it was run again
    assert new.select("auto_secure").last().frame["min_honest_sites"].tolist() == [2, 2]
    assert {line.contender for line in accuracy.read_lines(made / "accuracy.csv")} == set(accuracy.CONTENDERS)


def test_more_splits_extend_a_folder(program, made):
    suite(program, made, "--repeats", "3").succeeded()
    assert {line.seed for line in accuracy.read_lines(made / "accuracy.csv")} == {1, 2, 3}


def test_other_words_are_refused(program, few, tmp_path):
    for words, message in [
        (["--sets", "adlt"], "there is no data set 'adlt' in the suite"),
        (["--only", "autos"], "--only: there is no 'autos' in the suite; there are auto"),
    ]:
        with case(message):
            assert message in " ".join(program(*words, "-o", tmp_path / "out").err.split())


def test_a_data_set_that_cannot_be_had_is_left_out(program, made, tmp_path, monkeypatch):
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    words = ["--sets", "compas,correlated", "--quick", "--repeats", "2", "-o", made]
    answer = program(*words).succeeded()
    assert "compas is left out: the table compas could not be fetched" in " ".join(answer.out.split())
    assert {line.set for line in accuracy.read_lines(made / "accuracy.csv")} == {"correlated"}
    words[1] = "compas"
    assert "none of the suite's data sets could be had" in program(*words).err
