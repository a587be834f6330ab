"""The figure of coefficients: positions, and bars of 95% intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpadmm.figures.coefficients import coefficient_figure
from dpadmm.figures.style import save_figure
from dpadmm.models.explanation import Coefficient, Explanation

CLEAR = Coefficient("age", "", "per unit", "", 0.1, 0.02, 60.0)
NOISY = Coefficient("ward", "cost in $ and $", "vs average", "", -0.3, 0.4, 1.0)


def explanation(*coefficients, unknown=""):
    return Explanation("log odds of ill against well", coefficients, (), unknown, "")


def bars(axes):
    return [segment for lines in axes.collections for segment in lines.get_segments() if len(segment) == 2]


def test_points_and_intervals():
    axes = coefficient_figure(explanation(CLEAR, NOISY), top=20, title="m").figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["age (per 60 units)", r"ward=cost in \$ and \$"]
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
    figure = coefficient_figure(explanation(*parts), top=4, title="m").figure
    assert len(figure.axes[0].get_yticks()) == 4
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"class 0", "class 1"} < set(words)
    for path in save_figure(figure, tmp_path / "coefficients"):
        assert path.stat().st_size > 1000


@pytest.mark.parametrize("count", [0, 1])
def test_without_standard_errors_there_are_no_bars(count):
    parts = [Coefficient("age", "", "per unit", "", 0.1, None, 60.0)] * count
    figure = coefficient_figure(explanation(*parts, unknown="no study"), top=20, title="m").figure
    assert not bars(figure.axes[0])
    assert not figure.legends


def test_coefficients_without_interval_are_omitted():
    silent = Coefficient("ward", "other", "vs average", "", 0.9, None, 1.0)
    axes = coefficient_figure(explanation(CLEAR, silent), top=20, title="m").figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["age (per 60 units)"]


def test_long_names_are_cut():
    long = Coefficient("a" * 200, "", "per unit", "", 0.1, 0.01, 60.0)
    label = coefficient_figure(explanation(long), top=20, title="m").figure.axes[0].get_yticklabels()[0].get_text()
    assert "…" in label
    assert len(label) < 65


def test_ratios_are_on_the_axis_and_next_to_the_intervals():
    found = replace(explanation(CLEAR, NOISY), ratios="odds ratio")
    axes, beside = coefficient_figure(found, top=20, title="m").figure.axes
    ticks = {text.get_text(): place for text, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
    assert ticks["1"] == 0.0
    assert ticks["10"] == pytest.approx(np.log(10.0))
    assert axes.get_xlabel().startswith("ratio of the odds of ill against well")
    texts = [text.get_text() for text in beside.get_yticklabels()]
    assert texts == ["403 (38 to 4238)", "0.74 (0.34 to 1.62)"]
    assert beside.get_ylim() == axes.get_ylim()
    narrow = replace(found, coefficients=(Coefficient("x", "", "per unit", "", 0.01, 0.002, 1.0),))
    assert len(coefficient_figure(narrow, top=20, title="m").figure.axes[0].get_xticks()) >= 3
