"""The comparison with scikit-learn runs, and privacy costs some but not all accuracy."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "sklearn_comparison.py"


def test_privacy_costs_some_accuracy_but_not_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(SCRIPT))["main"](n_fits=1)
    lines = capsys.readouterr().out.splitlines()
    for name, block, least in (("digits", lines[1:6], 0.75), ("breast cancer", lines[6:11], 0.7)):
        accuracies = [float(line.split()[-2]) for line in block]
        assert all(line.startswith(name) for line in block)
        assert [line.split()[-3] for line in block] == ["none", "0.5", "1", "3", "10"]
        assert accuracies[0] > 0.94
        assert accuracies[0] >= accuracies[-1] > least
    assert float(lines[2].split()[-2]) < 0.6  # ten classes at ε = 0.5: much noise
    assert len(lines) == 12
