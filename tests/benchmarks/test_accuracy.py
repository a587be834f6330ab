"""``python benchmarks/accuracy.py``: a table of runs and a page, resumed, and one method again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from looping import case

import suite
from accuracy import main
from dpadmm.experiments.results import ADDED, read_results, write_results

pytestmark = pytest.mark.usefixtures("workers_forked")


@pytest.fixture
def few(monkeypatch):
    """Few rounds, rows and agents."""
    for name, contender in list(suite.CONTENDERS.items()):
        short = replace(contender, settings=lambda entry, of=contender: {**of.settings(entry), "n_rounds": 3})
        monkeypatch.setitem(suite.CONTENDERS, name, short)
    monkeypatch.setattr(suite, "AGENTS", (1, 2))
    monkeypatch.setattr(suite, "MOST_ROWS", 400)


@pytest.fixture
def run(capsys):
    """What the script prints."""

    def run(folder, *words, sets="correlated"):
        capsys.readouterr()
        main(["--sets", sets, "--quick", "--repeats", "2", "-o", str(folder), *words])
        return capsys.readouterr().out

    return run


def test_the_suite_writes_its_lines_and_its_page(run, few, tmp_path):
    answer = run(tmp_path, "--json", sets="correlated,separable")
    assert json.loads(answer)["cells"] == 4
    lines = suite.read_lines(tmp_path / "accuracy.csv")
    # three learning rates are tuned; secure aggregation is for several agents
    assert len(lines) == 2 * 2 * (2 * 9 + 1 + 1)
    spent = [line.total_epsilon for line in lines if line.contender != "optimum"]
    assert spent == pytest.approx([1.0] * len(spent), abs=1e-3)
    text = (tmp_path / "accuracy.md").read_text()
    assert text.startswith("# Accuracy")
    assert "### separable" in text
    before = read_results(tmp_path / "correlated").table
    assert "auto is behind" in run(tmp_path, sets="correlated,separable")
    assert read_results(tmp_path / "correlated").table.equals(before)  # nothing was run again


def test_only_makes_one_method_s_runs_again(run, few, tmp_path):
    run(tmp_path)
    before = read_results(tmp_path / "correlated")
    run(tmp_path, "--only", "auto")
    after = read_results(tmp_path / "correlated")
    for name, same in (("auto", False), ("dp_sgd", True), ("optimum", True)):
        with case(name):
            old, new = (each.select(name).column("wall_seconds").tolist() for each in (before, after))
            assert len(old) == len(new)
            assert (old == new) == same


def test_a_folder_from_before_a_contender_and_its_settings_is_resumed(run, few, tmp_path):
    run(tmp_path)
    path = tmp_path / "correlated" / "results.parquet"
    made = read_results(path)
    grid = {**made.grid, "experiments": {k: v for k, v in made.grid["experiments"].items() if k != "auto_secure"}}
    old = made.select(cell=[key for each in grid["experiments"].values() for key in each["cells"]])
    assert len(old.cells) == len(made.cells) - 2
    about = {"grid": grid, "data": made.meta["data"], "command": made.meta["command"]}
    write_results(path, old.table.drop_columns(list(ADDED)), **about)
    run(tmp_path)
    new = read_results(path)
    assert new.select(cell=old.cells).table.equals(old.table)  # nothing of it was run again
    assert new.select("auto_secure").last().column("honest").tolist() == [2, 2]
    assert {line.contender for line in suite.read_lines(tmp_path / "accuracy.csv")} == set(suite.CONTENDERS)


def test_more_splits_extend_a_folder(run, few, tmp_path):
    run(tmp_path)
    run(tmp_path, "--repeats", "3")
    assert {line.seed for line in suite.read_lines(tmp_path / "accuracy.csv")} == {1, 2, 3}


def test_other_words_are_refused(few, tmp_path):
    for words, message in [
        (["--sets", "adlt"], "there is no data set 'adlt' in the suite"),
        (["--only", "autos"], "--only: there is no 'autos' in the suite; there are auto"),
    ]:
        with case(message), pytest.raises(SystemExit, match=message):
            main([*words, "-o", str(tmp_path / "out")])


def test_a_data_set_that_cannot_be_had_is_left_out(run, few, tmp_path, monkeypatch):
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    answer = run(tmp_path / "out", sets="compas,correlated")
    assert "compas is left out: the table compas could not be fetched" in " ".join(answer.split())
    assert {line.set for line in suite.read_lines(tmp_path / "out" / "accuracy.csv")} == {"correlated"}
    with pytest.raises(SystemExit, match="none of the suite's data sets could be had"):
        run(tmp_path / "out", sets="compas")
