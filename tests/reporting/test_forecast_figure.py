"""The figure of a forecast."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from dpadmm.reporting.figures import forecast_figure
from dpadmm.runs.planning.forecast import Cell, Grid, Outlook, Value
from dpadmm.runs.planning.plan import judged

GRID = Grid((0.5, 1.0), (10, 20), (1.0, 20))


def outlook(name, start):
    cells = tuple(
        Cell(epsilon, rounds, Value(start + 0.1 * epsilon + 0.001 * rounds, luck=0.03, sampling=0.04))
        for epsilon, rounds in GRID.cells
    )
    return Outlook(name, cells, Value(start + 0.25, sampling=0.01), start, 500)


@pytest.mark.parametrize("names", [["public rows"], ["weak signal", "strong signal"]])
def test_lines_bands_and_limits_are_what_was_forecast(names):
    outlooks = [outlook(name, 0.5 + 0.1 * k) for k, name in enumerate(names)]
    verdicts = [judged(each, GRID, goal=None, higher=True) for each in outlooks]
    picture = forecast_figure(outlooks, GRID, verdicts, title="flu", measure="accuracy", percent=True)
    panels = picture.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [f"{name}: open" for name in names]
    for axes, each in zip(panels, outlooks, strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        for rounds in GRID.rounds:
            drawn = lines[f"{rounds} rounds"].get_ydata()
            assert list(drawn) == [each.at(epsilon, rounds).mean for epsilon in GRID.epsilons]
        low, high = axes.collections[0].get_datalim(axes.transData).intervaly
        first = [each.at(epsilon, 10) for epsilon in GRID.epsilons]
        assert low == pytest.approx(first[0].mean - 0.05)
        assert high == pytest.approx(first[1].mean + 0.05)
        assert lines["without privacy"].get_ydata()[0] == each.ceiling.mean
        assert lines["without learning"].get_ydata()[0] == each.baseline
        assert lines["goal"].get_ydata()[0] == pytest.approx(each.baseline + 0.125)
        assert lines["this study"].get_xydata().tolist() == [[1.0, each.at(1.0, 20).mean]]
        assert to_hex(lines["10 rounds"].get_color()) != to_hex(lines["20 rounds"].get_color())
    assert "Forecast, not a result" in picture.figure.get_suptitle()
    assert "no private row was read" in picture.caption
