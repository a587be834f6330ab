"""``python -m reproduction run``: from a grid to results and figures, in text and JSON."""

from __future__ import annotations

import json

import pytest

from reproduction.grid import grid_from
from reproduction.results import read_results

pytestmark = pytest.mark.usefixtures("workers_forked")

GRID = """
title = "tiny"
data = "synthetic"
repeats = 2
[shared]
n_rounds = 6
metrics_every = 3
delta = 1e-3
[experiments.agents]
title = "Number of agents"
[[experiments.agents.runs]]
method = "dp_admm"
n_agents = [3, 6]
epsilon = 1.0
[[experiments.agents.runs]]
method = "centralized"
n_agents = 3
[experiments.toolarge]
title = "A budget that the paper's calibration does not know"
[[experiments.toolarge.runs]]
method = "dp_admm"
round_epsilon = 5.0
"""


@pytest.fixture(scope="module")
def grid_folder(tmp_path_factory):
    """A folder with the grid file, shared by all tests of this file. Finished cells are not run again."""
    folder = tmp_path_factory.mktemp("reproduce")
    (folder / "grid.toml").write_text(GRID)
    return folder


@pytest.fixture
def arguments(grid_folder):
    return ["run", "--grid", grid_folder / "grid.toml", "-o", grid_folder / "out"]


def test_table_lists_runs_and_paths(reproduction, grid_folder, arguments):
    for columns in (80, 120):
        answer = reproduction(*arguments, "--no-figures", columns=columns).succeeded()
        lines = answer.out.splitlines()
        assert max(len(line) for line in lines if not line.startswith("Results:")) <= columns
        assert "…" not in answer.out
        rows = {line.split()[0]: line.split() for line in lines if line.split()}
        assert rows["agents"][-2:-1] == ["6"]
        assert rows["toolarge"][-3:-1] == ["2", "2"]
        assert lines[-1] == f"Results: {grid_folder / 'out' / 'results.parquet'}"
        assert answer.err == ""


def test_json_output_and_provenance_in_the_file(reproduction, grid_folder, arguments):
    answer = reproduction(*arguments, "toolarge", "agents", "--no-figures", "--json").succeeded()
    assert list(answer.json["experiments"]) == ["toolarge", "agents"]
    assert answer.json["experiments"]["toolarge"]["refused"] == 2
    assert answer.json["files"] == [str(grid_folder / "out" / "results.parquet")]
    results = read_results(grid_folder / "out")
    assert len(results.cells) == 8
    assert results.meta["command"].startswith("python -m reproduction run --grid ")


def test_experiment_without_a_possible_run_is_an_error_with_the_reason(reproduction, grid_folder, arguments):
    answer = reproduction(*arguments, "toolarge", "--no-figures")
    assert answer.code == 2
    assert answer.err.startswith("dpadmm: all of these runs were refused; ")


def test_additional_repeats_extend_a_folder(reproduction, arguments, tmp_path):
    short = [*arguments[:3], "agents", "-o", tmp_path / "new", "--no-figures", "--json"]
    reproduction(*short).succeeded()
    before = read_results(tmp_path / "new")
    answer = reproduction(*short, "--repeats", "3").succeeded()
    assert answer.json["experiments"]["agents"]["runs"] == 9
    after = read_results(tmp_path / "new")
    assert after.grid["repeats"] == 3
    assert after.select(cell=before.cells).to_table().equals(before.to_table())
    assert len(after.meta["command"].splitlines()) == 2


def test_file_names_all_commands_that_wrote_it(reproduction, arguments, tmp_path):
    for names in (["agents"], ["agents", "toolarge"], ["agents"]):
        reproduction(*arguments[:3], *names, "-o", tmp_path / "new", "--no-figures").succeeded()
    commands = read_results(tmp_path / "new").meta["command"].splitlines()
    assert ["toolarge" in command for command in commands] == [False, True]


def test_figures_and_tables_depend_on_the_file_only(reproduction, grid_folder, arguments):
    pytest.importorskip("reproduction.report")
    answer = reproduction(*arguments, "--json").succeeded()
    assert len(answer.json["files"]) > 1
    for name in answer.json["files"]:
        assert (grid_folder / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["agent"], "there is no experiment 'agent'; there are agents"),
        (["--repeats", "1"], "belongs to another grid (repeats = 2, not 1)"),
        (["--repeats", "0"], "repeats must be a whole number of at least 1"),
        (["--workers", "0"], "workers must be a whole number of at least 1"),
        (["--grid", "nothing.toml"], "nothing.toml: there is no such file"),
    ],
)
def test_errors_are_one_sentence(reproduction, arguments, extra, says):
    reproduction(*arguments, "--no-figures").succeeded()
    answer = reproduction(*arguments, *extra)
    assert answer.code == 2
    assert answer.err.startswith("dpadmm: ")
    assert says in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_folder_with_other_contents_is_not_changed(reproduction, grid_folder, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    answer = reproduction("run", "--grid", grid_folder / "grid.toml", "-o", tmp_path)
    assert answer.code == 2
    assert "is not empty and has no results.parquet to resume from" in answer.err
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "results.parquet").write_bytes(b"PAR1 but not really")
    answer = reproduction("run", "--grid", grid_folder / "grid.toml", "-o", damaged)
    assert answer.code == 2
    assert "damaged or not a results file; choose another output folder, or give --overwrite" in answer.err


def test_grid_has_one_kind_of_labels(reproduction, tmp_path):
    text = GRID + '[[experiments.agents.runs]]\nmethod = "centralized"\nloss = "squared"\n'
    (tmp_path / "grid.toml").write_text(text)
    answer = reproduction("run", "--grid", tmp_path / "grid.toml", "-o", tmp_path / "out")
    assert answer.code == 2
    assert "losses need binary and regression" in answer.err


def test_experiments_can_be_selected_by_figure(reproduction):
    answer = reproduction("run", "fig5")
    assert answer.code == 2
    assert "there is no experiment 'fig5'; there are fig1, fig2" in answer.err


def test_file_contains_the_grid(reproduction, grid_folder, arguments):
    import tomllib

    reproduction(*arguments, "--no-figures").succeeded()
    assert read_results(grid_folder / "out").grid == json.loads(json.dumps(grid_from(tomllib.loads(GRID)).as_json))
