"""``python -m benchmarks.accuracy``: runs, page, resuming, and rerunning one method."""

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
def small_suite(monkeypatch):
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
def results_folder(program, small_suite, once, tmp_path):
    """A folder with the suite's runs on one data set, shared by all tests."""
    folder = once("suite", lambda folder: suite(program, folder).succeeded())
    return copytree(folder, tmp_path / "made")


def test_suite_writes_results_and_page(program, small_suite, tmp_path):
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
    assert read_results(tmp_path / "correlated").to_table().equals(before)  # no cell was run again


def test_only_reruns_one_method(program, results_folder):
    before = read_results(results_folder / "correlated")
    suite(program, results_folder, "--only", "auto").succeeded()
    after = read_results(results_folder / "correlated")
    for name, same in (("auto", False), ("dp_sgd", True), ("optimum", True)):
        with case(name):
            old, new = (item.select(name).frame["wall_seconds"].tolist() for item in (before, after))
            assert len(old) == len(new)
            assert (old == new) == same


def test_folder_without_a_new_method_is_resumed(program, results_folder):
    path = results_folder / "correlated" / "results.parquet"
    whole = read_results(path)
    grid = {**whole.grid, "experiments": {k: v for k, v in whole.grid["experiments"].items() if k != "auto_secure"}}
    old = whole.select(cell=[key for experiment in grid["experiments"].values() for key in experiment["cells"]])
    assert len(old.cells) == len(whole.cells) - 2
    about = {"grid": grid, "data": whole.meta["data"], "command": whole.meta["command"]}
    write_results(path, old.to_table(), **about)
    suite(program, results_folder).succeeded()
    new = read_results(path)
    assert new.select(cell=old.cells).to_table().equals(old.to_table())  # none of its cells were run again
    assert new.select("auto_secure").last().frame["min_honest_sites"].tolist() == [2, 2]
    assert {line.contender for line in accuracy.read_lines(results_folder / "accuracy.csv")} == set(accuracy.CONTENDERS)


def test_additional_splits_extend_a_folder(program, results_folder):
    suite(program, results_folder, "--repeats", "3").succeeded()
    assert {line.seed for line in accuracy.read_lines(results_folder / "accuracy.csv")} == {1, 2, 3}


def test_invalid_arguments_are_refused(program, small_suite, tmp_path):
    for words, message in [
        (["--sets", "adlt"], "there is no data set 'adlt' in the suite"),
        (["--only", "autos"], "--only: there is no 'autos' in the suite; there are auto"),
    ]:
        with case(message):
            assert message in " ".join(program(*words, "-o", tmp_path / "out").err.split())


def test_unavailable_data_set_is_excluded(program, results_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    words = ["--sets", "compas,correlated", "--quick", "--repeats", "2", "-o", results_folder]
    answer = program(*words).succeeded()
    assert "compas is left out: the table compas could not be fetched" in " ".join(answer.out.split())
    assert {line.set for line in accuracy.read_lines(results_folder / "accuracy.csv")} == {"correlated"}
    words[1] = "compas"
    assert "none of the suite's data sets could be had" in program(*words).err
