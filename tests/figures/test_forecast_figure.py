"""The figure of a forecast."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from dpadmm.figures.forecast import forecast_figure
from dpadmm.planning.costs import costs_of
from dpadmm.planning.forecast import ForecastGrid, ScenarioForecast, Value
from dpadmm.planning.plan import Plan
from dpadmm.planning.recommendation import Goal
from dpadmm.studies.study import Study

GRID = ForecastGrid((0.5, 1.0), (10, 20), (1.0, 20))


def forecast_of(name, start):
    cells = {
        (epsilon, rounds): {"accuracy": Value(start + 0.1 * epsilon + 0.001 * rounds, std=0.03, std_error=0.04)}
        for epsilon, rounds in GRID.cells
    }
    return ScenarioForecast(name, cells, {"accuracy": Value(start + 0.25, std_error=0.01)}, {"accuracy": start}, 500)


@pytest.mark.parametrize("names", [["public rows"], ["weak signal", "strong signal"]])
def test_lines_bands_and_limits_show_the_forecast(names):
    forecasts = [forecast_of(name, 0.5 + 0.1 * k) for k, name in enumerate(names)]
    study, sizes = Study(name="flu", features=("a",), training={"epsilon": 1.0}), np.array([500])
    goal = Goal("accuracy", 0.625)
    plan = Plan(study, sizes, costs_of(study, sizes), GRID, tuple(forecasts), goal, None, 2)
    picture = forecast_figure(plan, title="flu")
    panels = picture.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"{name}: {w}" for name, w in zip(names, ("inconclusive", "recommended"), strict=False)
    ]
    for axes, each in zip(panels, forecasts, strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        for rounds in GRID.rounds:
            drawn = lines[f"{rounds} rounds"].get_ydata()
            assert list(drawn) == [each.at(epsilon, rounds)["accuracy"].mean for epsilon in GRID.epsilons]
        low, high = axes.collections[0].get_datalim(axes.transData).intervaly
        first = [each.at(epsilon, 10)["accuracy"] for epsilon in GRID.epsilons]
        assert low == pytest.approx(first[0].mean - 0.05)
        assert high == pytest.approx(first[1].mean + 0.05)
        assert lines["without noise"].get_ydata()[0] == each.without_noise["accuracy"].mean
        assert lines["constant prediction"].get_ydata()[0] == each.constant["accuracy"]
        assert lines["goal"].get_ydata()[0] == 0.625
        assert lines["this study"].get_xydata().tolist() == [[1.0, each.at(1.0, 20)["accuracy"].mean]]
        assert to_hex(lines["10 rounds"].get_color()) != to_hex(lines["20 rounds"].get_color())
    assert "Forecast, not a result" in picture.figure.get_suptitle()
    assert "no private row was read" in picture.caption
