"""The figure of coefficients: every one where it belongs, with bars of two standard errors."""

from __future__ import annotations

import numpy as np
import pytest

from dpadmm.model.explain import Coefficient, Explanation
from dpadmm.reporting.figures import coefficient_figure, save_figure

CLEAR = Coefficient("age", "", "per unit", "", 0.1, 0.02, 60.0)
NOISY = Coefficient("ward", "cost in $ and $", "vs average", "", -0.3, 0.4, 1.0)


def explanation(*coefficients, unknown=""):
    return Explanation("log odds of ill against well", coefficients, (), unknown, "")


def bars(axes):
    return [segment for lines in axes.collections for segment in lines.get_segments() if len(segment) == 2]


def test_dots_and_bars():
    axes = coefficient_figure(explanation(CLEAR, NOISY), top=20, title="m").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["age", r"ward=cost in \$ and \$"]
    reach = sorted(tuple(np.round(segment[:, 0], 9)) for segment in bars(axes))
    wide = 1.959963985
    expected = [(-0.3 - 0.4 * wide, -0.3 + 0.4 * wide), (6.0 - 1.2 * wide, 6.0 + 1.2 * wide)]
    assert np.allclose(reach, expected)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # largest on top
    filled = {line.get_xdata()[0]: line.get_markerfacecolor() for line in axes.lines
              if line.get_marker() == "o" and len(line.get_xdata()) == 1}  # fmt: skip
    assert filled[-0.3] == "white"
    assert filled[6.0] != "white"


def test_only_the_top_is_shown_and_classes_are_named(tmp_path):
    parts = [Coefficient(f"c{j}", "", "per unit", f"class {j % 2}", 1.0 / (j + 1), 0.1, 1.0) for j in range(9)]
    figure = coefficient_figure(explanation(*parts), top=4, title="m")
    assert len(figure.axes[0].get_yticks()) == 4
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"class 0", "class 1"} < set(words)
    for path in save_figure(figure, tmp_path / "coefficients"):
        assert path.stat().st_size > 1000


@pytest.mark.parametrize("count", [0, 1])
def test_without_standard_errors_there_are_no_bars(count):
    parts = [Coefficient("age", "", "per unit", "", 0.1, None, 60.0)] * count
    figure = coefficient_figure(explanation(*parts, unknown="no study"), top=20, title="m")
    assert not bars(figure.axes[0])
    assert not figure.legends


def test_what_has_no_interval_beside_others_is_left_out():
    silent = Coefficient("ward", "other", "vs average", "", 0.9, None, 1.0)
    axes = coefficient_figure(explanation(CLEAR, silent), top=20, title="m").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["age"]


def test_long_names_are_cut():
    long = Coefficient("a" * 200, "", "per unit", "", 0.1, 0.01, 60.0)
    label = coefficient_figure(explanation(long), top=20, title="m").axes[0].get_yticklabels()[0].get_text()
    assert label.endswith("…")
    assert len(label) < 50
