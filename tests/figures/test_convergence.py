"""The convergence figure: content, and files that any viewer opens."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from dpadmm.engine.metrics import Trace
from dpadmm.figures.convergence import convergence_figure
from dpadmm.figures.style import save_figure


def trace(rounds: int, test: bool = True, level: float = 1.0) -> Trace:
    k = np.arange(1.0, rounds + 1.0)
    columns = {"round": k, "train_loss_global": level / k, "train_error_global": 0.3 / k}
    return Trace({**columns, "test_error_global": 0.4 / k} if test else columns)


def test_means_spread_and_optimum():
    traces = {"ε = 1": [trace(5, level=1.0), trace(5, level=3.0)], "ε = 2": [trace(5)]}
    figure = convergence_figure(traces, optimum={"train_loss_global": 0.1}, title="a title")
    loss, error = figure.axes
    assert np.allclose(loss.lines[0].get_ydata(), 2.0 / np.arange(1, 6))
    assert [line.get_label() for line in loss.lines] == ["ε = 1", "ε = 2", "non-private optimum"]
    assert len(loss.collections) == 1
    assert len(error.lines) == 2
    assert error.get_title(loc="left").endswith("test rows")


def test_without_test_rows_the_training_error_is_drawn():
    figure = convergence_figure({"run": [trace(3, test=False)]})
    assert figure.axes[1].get_title(loc="left").endswith("training rows")
    assert np.allclose(figure.axes[1].lines[0].get_ydata(), 0.3 / np.arange(1, 4))


@pytest.mark.parametrize("rounds", [1, 200])
def test_files_are_complete_and_reproducible(tmp_path, rounds):
    first, second = (
        save_figure(convergence_figure({"a": [trace(rounds)]}), tmp_path / name) for name in ("one", "two")
    )
    assert [path.name for path in first] == ["one.png", "one.svg"]
    assert first[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(first[1]).getroot().tag.endswith("svg")
    assert first[1].read_bytes() == second[1].read_bytes()


def test_runs_of_different_lengths():
    figure = convergence_figure({"a": [trace(3), trace(5)]})
    assert len(figure.axes[0].lines[0].get_ydata()) == 3
