"""The diffs of CONTRIBUTING.md are applied to a copy of the tree, and the additions work everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)

USE = """
import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from dpadmm import simulate
from dpadmm.cli import app
from dpadmm.queries import QUERIES
from dpadmm.studies.reading import read_study
from dpadmm.training import compare
from reproduction import runner
from reproduction.__main__ import app as reproduction


def run(*words, app=app):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def here(make, tasks, **options):
    answer = make()
    yield from ((task, answer(task)) for task in tasks)


runner.in_processes = compare.in_processes = here  # no processes are started

# help and schema
shown = run("simulate", "--help")
for name in ("log_cosh", "smoothed_l1", "warm_sgd"):
    assert name in shown, name
for what, name in (("loss", "scale"), ("regularizer", "width"), ("method", "warm_share")):
    assert f"{what}.{name}" in run("simulate", "--set", f"{what}.?"), name
schema = json.loads(run("study", "schema"))["properties"]
for table, name in (("loss", "log_cosh"), ("regularizer", "smoothed_l1"), ("method", "warm_sgd")):
    assert name in [choice["properties"]["name"]["const"] for choice in schema[table]["oneOf"]]

# simulate and compare
own = ["--loss", "log_cosh", "--set", "loss.scale=0.5", "--regularizer", "smoothed_l1",
       "--set", "regularizer.width=0.2"]
small = ["--data", "synthetic", "-e", 2, "-t", 4, "-n", 3, "--seed", 1]
said = json.loads(run("simulate", *small, *own, "--json"))["settings"]
assert (said["loss"]["scale"], said["regularizer"]["width"]) == (0.5, 0.2)
compared = json.loads(run("compare", "--methods", "dp_admm,warm_sgd", "--data", "synthetic", "-e", 2, "-n", 3,
                          "-t", 4, "--json", "--workers", 1))
assert {row["method"] for row in compared["rows"]} == {"dp_admm", "warm_sgd", "centralized"}
assert all(row["status"] == "done" for row in compared["rows"])

# rounds that differ are charged as such, exact noise included
for exact in (False, True):
    result = simulate("synthetic", method={"name": "warm_sgd", "warm_share": 0.25}, epsilon=2.0, n_rounds=4,
                      n_agents=3, seed=1, exact_noise=exact)
    assert abs(result.privacy.epsilon - 2.0) < 1e-9
    ((first, once), (later, thrice)) = result.privacy.agents[0].planned
    assert (first.statistic, once, later.statistic, thrice) == ("label_sums", 1, "gradient", 3)
    shares = np.array([1.0 / first.noise_multiplier**2, 3.0 / later.noise_multiplier**2])
    assert np.allclose(shares / shares.sum(), [0.25, 0.75])
assert list(QUERIES)[-2:] == ["score_histogram", "label_sums"]

# a study: check, train, evaluate
rng = np.random.default_rng(0)
x, y = rng.uniform(-1, 1, (400, 2)), rng.uniform(0, 1, 400)
lines = ["a,b,y", *(f"{a:.4f},{b:.4f},{c:.4f}" for (a, b), c in zip(x, y))]
Path("table.csv").write_text("\\n".join(lines) + "\\n")
Path("study.toml").write_text('''
format = "dpadmm-study/2"
name = "recipes"
[label]
column = "y"
bounds = [0, 1]
[columns.a]
kind = "number"
bounds = [-1, 1]
[columns.b]
kind = "number"
bounds = [-1, 1]
[loss]
name = "log_cosh"
scale = 0.5
[regularizer]
name = "smoothed_l1"
[method]
name = "warm_sgd"
[training]
n_rounds = 4
[privacy]
epsilon = 5.0
[provenance]
loss.scale = "assumed"
''')
run("study", "check", "study.toml")
runs = read_study(Path("study.toml")).terms.plan.runs
assert [release.statistic for release, _ in runs] == ["label_sums", "gradient"]
run("train", "study.toml", "--data", "table.csv", "--agents", 2, "-o", "m.dpadmm", "--quiet")
run("verify", "m.privacy.json")
loss = json.loads(run("evaluate", "m.dpadmm", "--data", "table.csv", "--json"))["loss"]
assert 0.0 < loss < 1.0

# the report of the paper's runs has the new figure
Path("grid.toml").write_text('''
data = "synthetic"
repeats = 2
[shared]
n_rounds = 3
[[experiments.fig1.runs]]
method = "dp_admm"
n_agents = [2, 3]
round_epsilon = [0.05, 0.1]
''')
run("run", "--grid", "grid.toml", "-o", "out", "--workers", 1, app=reproduction)
assert list(Path("out").rglob("spread.png"))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with every recipe of CONTRIBUTING.md applied."""
    folder = tmp_path_factory.mktemp("tree")
    # with the compiler's cache, which detects changed files by their time
    shutil.copytree(ROOT / "src", folder / "src")
    unneeded = shutil.ignore_patterns("__pycache__", "corpus", "mutation")
    shutil.copytree(ROOT / "reproduction", folder / "reproduction", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for diff in DIFFS:
        done = subprocess.run(
            ["git", "apply", "-"], input=diff, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"this diff of CONTRIBUTING.md does not apply: {diff[:200]}\n{done.stderr}"
    return folder


def followed(tree: Path, words: list[str]) -> str:
    paths = os.pathsep.join(str(tree / item) for item in ("src", "tests", "tests/support"))
    new = {"DPADMM_CASES": "log_cosh,smoothed_l1", "OPENBLAS_NUM_THREADS": "1"}
    env = {**os.environ, **new, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_recipe_is_one_new_file_and_one_line() -> None:
    assert len(DIFFS) == 5
    for diff in DIFFS:
        assert diff.count("+++ b/") == 2
        assert diff.count("--- /dev/null") == 1
        (changed,) = re.findall(r"--- a/.*?(?=--- |\Z)", diff, re.DOTALL)
        lines = [line for line in changed.splitlines() if re.match(r"[+-](?![+-])", line)]
        assert len(lines) == 1
        assert lines[0].startswith('+    "')


def test_commands_and_files_support_the_additions(tree: Path) -> None:
    followed(tree, ["-c", USE])


def test_tests_over_all_cases_include_the_additions(tree: Path) -> None:
    """For losses and regularizers. A new method also gives the same results simulated and deployed."""
    words = ["tests/losses", "tests/regularizers", "tests/equivalence/test_guard_and_cohort.py"]
    words += ["tests/test_public_names.py"]
    left_out = "not of_an_example and not softmax and not case_is_covered and not large_agents"
    output = followed(tree, ["-m", "pytest", "-v", "-p", "no:cacheprovider", *words, "-k", left_out])
    assert len(re.findall(r"^tests/(?:losses|regularizers)/.* PASSED", output, re.MULTILINE)) > 20
    assert "::test_guards_and_cohort_send_identical_uploads PASSED" in output
    assert "::test_names_in_studies_and_results_are_stable PASSED" in output
