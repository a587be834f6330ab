"""Grids: crossing of settings, identity of cells, stable names, and errors with their position."""

from __future__ import annotations

import copy
from dataclasses import fields

import pytest
from grids import N_CELLS, SMALL
from hypothesis import given
from hypothesis import strategies as st
from looping import case

from dpadmm.errors import DPADMMError
from dpadmm.methods import DpAdmm
from dpadmm.studies.settings import Settings
from reproduction import paper_grid
from reproduction.grid import Cell, grid_from, read_grid


def grid_of(*runs, **top):
    return grid_from({"data": "synthetic", "experiments": {"a": {"runs": list(runs)}}, **top})


@given(
    epsilons=st.lists(st.sampled_from([0.1, 0.5, 1.0, 2.0]), min_size=1, unique=True),
    agents=st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True),
    repeats=st.integers(1, 4),
    first_seed=st.integers(0, 100),
)
def test_lists_and_seeds_are_crossed(epsilons, agents, repeats, first_seed):
    run = {"method": "dp_admm", "epsilon": epsilons, "n_agents": agents}
    cells = grid_of(run, repeats=repeats, first_seed=first_seed).cells()
    found = [(cell.settings.epsilon, cell.settings.n_agents, cell.settings.seed) for cell in cells]
    seeds = range(first_seed, first_seed + repeats)
    assert found == [(e, n, s) for e in epsilons for n in agents for s in seeds]
    assert len({cell.key for cell in cells}) == len(cells)


def test_cell_shared_by_experiments_is_one_cell():
    grid = grid_from(SMALL)
    assert [len(experiment.cells) for experiment in grid.experiments] == [10, 1, 3]
    assert len(grid.cells()) == N_CELLS
    assert len(grid.cells(["again"])) == 3
    assert {cell.key for cell in grid.cells(["again"])} < {cell.key for cell in grid.cells()}
    once = grid_of({"method": "dp_admm", "epsilon": 1.0}, {"method": "dp_admm", "epsilon": [1.0, 2.0]})
    assert len(once.cells()) == 2


def test_timed_run_is_a_separate_cell():
    runs = [{"method": "centralized"}, {"method": "centralized", "timed": True}]
    assert [cell.timed for cell in grid_of(*runs).cells()] == [False, True]


def test_keys_are_settings_only():
    settings = Settings(epsilon=1.0, method={"weight_radius": 89.0}, seed=1)
    key = Cell("adult", settings).key
    assert (
        key == Cell("adult", settings.with_changes(method={"weight_radius": 89}, epsilon=1)).key
    )  # as a TOML writer may format it
    assert len(key) == 16
    others = {"epsilon": 2.0, "n_agents": 7, "seed": 2, "delta": 0.1, "average": "tail", "intercept": True}
    changed = {Cell("adult", settings.with_changes(**{name: value})).key for name, value in others.items()}
    assert len(changed | {key, Cell("iris", settings).key, Cell("adult", settings, timed=True).key}) == 9


def test_digest_depends_on_settings_and_not_on_their_order():
    digest = grid_from(SMALL).digest
    shuffled = {name: SMALL[name] for name in reversed(SMALL)}
    assert grid_from(shuffled).digest == digest
    changes = [("repeats", 3), ("first_seed", 2), ("data", "other.csv"), ("shared", {"n_rounds": 7})]
    assert len({digest} | {grid_from({**SMALL, name: value}).digest for name, value in changes}) == 5


def test_data_file_is_stored_without_its_folder():
    here, there = (grid_of({"method": "centralized"}, data=path) for path in ("a/x.csv", "/b/c/x.csv"))
    assert here.digest == there.digest
    assert there.data == {"data": "/b/c/x.csv"}


def test_fewer_repeats_can_be_selected():
    grid = grid_from(SMALL, repeats=1)
    assert {cell.settings.seed for cell in grid.cells()} == {1}
    more = grid_from(SMALL, repeats=5)
    assert [len(experiment.cells) for experiment in more.experiments] == [25, 1, 6]


def _changed(path, value):
    grid = copy.deepcopy(SMALL)
    at = grid
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return grid


BLOCK = ("experiments", "agents", "runs", 0)


def test_errors_contain_their_position():
    for path, value, says in [
        (("experimnts",), {}, "did you mean 'experiments'"),
        (("format",), 2, "format must be 1"),
        (("repeats",), 0, "repeats must be a whole number of at least 1"),
        (("first_seed",), True, "first_seed must be a whole number"),
        (("experiments",), {}, "at least one experiment"),
        (("experiments", "a b"), {"runs": [{}]}, "letters, digits"),
        (("experiments", "agents", "run"), [], "did you mean 'runs'"),
        (("experiments", "agents", "runs"), [], r"\[\[experiments.agents.runs\]\]"),
        (("shared", "rh0"), 1.0, "shared: unknown setting 'rh0'; did you mean 'rho'"),
        (("shared", "rho"), [0.1, 1.0], "lists belong into the runs"),
        ((*BLOCK, "epsilom"), 1.0, "experiment agents, block 1: unknown setting 'epsilom'"),
        ((*BLOCK, "seed"), 1, "experiment agents, block 1: unknown setting 'seed'"),
        ((*BLOCK, "method"), "dp_adm", "experiment agents, block 1: .*did you mean 'dp_admm'"),
        ((*BLOCK, "epsilon"), [0.5, -1.0], "experiment agents, block 1: epsilon must be a positive number"),
        ((*BLOCK, "epsilon"), [[0.5, 1.0]], "one value or a list of values"),
        ((*BLOCK, "epsilon"), [], "one value or a list of values"),
        ((*BLOCK, "timed"), "yes", "timed must be true or false"),
        ((*BLOCK, "metrics_every"), 0, "metrics_every must be at least 1"),
        ((*BLOCK, "round_epsilon"), 0.1, "set exactly one of epsilon"),
    ]:
        with case(path, value, says):
            with pytest.raises(DPADMMError, match=says) as refused:
                grid_from(_changed(path, value), "my.toml")
            assert str(refused.value).startswith("my.toml")
            assert "\n" not in str(refused.value)


def test_invalid_grid_files_are_refused(tmp_path):
    (tmp_path / "bad.toml").write_text("title = ")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, says in (
        ("none.toml", "no such file"),
        ("bad.toml", "not valid TOML"),
        ("bytes.toml", "text file"),
    ):
        with pytest.raises(DPADMMError, match=says):
            read_grid(tmp_path / name)


def test_unknown_experiment_error_suggests_the_closest():
    with pytest.raises(DPADMMError, match="no experiment 'fig8'; there are fig1, fig2"):
        paper_grid().cells(["fig8"])


def test_paper_grid_matches_the_paper():
    grid = paper_grid()
    named = {experiment.name: experiment.cells for experiment in grid.experiments}
    assert list(named) == [
        "fig1",
        "fig2",
        "fig3",
        "fig4",
        "fig6",
        "fig7",
        "table3",
        "bounds",
        "choices",
        "schedule",
        "lambda",
    ]
    for cell in grid.cells():
        settings = cell.settings
        assert (settings.n_rounds, getattr(settings.method, "rho", 0.1), settings.test_rows) == (100, 0.1, 5222)
    for name, regularizer, radius in (("fig1", "l1", 23.0), ("fig4", "l2", 89.0)):
        settings = [cell.settings for cell in named[name]]
        assert {(s.regularizer.name, s.alpha) for s in settings} == {(regularizer, 1e-6)}
        assert {s.method.weight_radius for s in settings if isinstance(s.method, DpAdmm)} == {radius}
        private = {(s.n_agents, s.round_epsilon, s.seed) for s in settings if s.method.name == "dp_admm"}
        assert private == {(n, e, k) for n in (1, 10, 50, 100, 200, 500) for e in (0.05, 0.1) for k in range(1, 11)}
    for name in ("fig2", "fig6"):
        pairs = {(cell.settings.round_epsilon, cell.settings.delta) for cell in named[name]}
        assert pairs == {(e, d) for e in (0.01, 0.05, 0.1, 0.2) for d in (1e-3, 1e-4, 1e-5, 1e-6)}
    figures = {cell.key for name in ("fig1", "fig4") for cell in named[name]}
    assert {cell.key for cell in named["bounds"]} <= figures  # without own runs
    assert all(cell.timed for cell in named["table3"])
    assert not any(cell.timed for name in named if name != "table3" for cell in named[name])


def test_every_setting_has_a_column():
    from reproduction.results import SCHEMA

    assert {field.name for field in fields(Settings)} <= set(SCHEMA.names)


def test_runs_inherit_and_override_settings_of_their_experiment():
    runs = [{"method": "dp_admm", "epsilon": 1.0}, {"method": "dp_admm", "epsilon": 1.0, "rho": [0.2, 0.3]}]
    grid = {
        "shared": {"n_rounds": 7, "rho": 0.5},
        "experiments": {"a": {"shared": {"rho": 0.1}, "runs": runs}},
    }
    settings = [cell.settings for cell in grid_from(grid).cells()]
    assert [(setting.method.rho, setting.n_rounds) for setting in settings] == [(0.1, 7), (0.2, 7), (0.3, 7)]
    grid["experiments"]["a"]["shared"] = {"rho": [0.1, 0.2]}
    with pytest.raises(DPADMMError, match="experiment a, shared: rho must be one value"):
        grid_from(grid)
