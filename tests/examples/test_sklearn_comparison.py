"""The comparison with scikit-learn runs, and privacy costs accuracy there and not all of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "sklearn_comparison.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sklearn_comparison", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("data", "least"), [("digits", 0.75), ("breast cancer", 0.7)])
def test_more_epsilon_is_more_accurate_and_none_is_best(example: ModuleType, data: str, least: float) -> None:
    plain, little, much = example.compare(data, epsilons=(0.05, 20.0), n_fits=1)
    assert [line.epsilon for line in (plain, little, much)] == [None, 0.05, 20.0]
    assert plain.accuracy > 0.94
    assert plain.accuracy >= much.accuracy > max(little.accuracy, least)


def test_it_prints_its_table() -> None:
    command = [sys.executable, str(SCRIPT), "1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = answer.stdout.splitlines()
    assert len(lines) == 1 + 2 * 5 + 1
    assert lines[1].split()[:3] == ["digits", "LogisticRegression", "none"]
    assert answer.stderr == ""
