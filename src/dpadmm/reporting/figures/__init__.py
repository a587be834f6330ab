"""The paper's figures, and those it leaves out, from a results file alone; one file per kind of figure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpadmm.reporting.comparison import comparison_picture
from dpadmm.reporting.figures.agents import agents_figure
from dpadmm.reporting.figures.bounds import bounds_figure
from dpadmm.reporting.figures.choices import choices_figure
from dpadmm.reporting.figures.epsilon import epsilon_figure
from dpadmm.reporting.figures.methods import methods_figure
from dpadmm.reporting.figures.objective import objective_figure
from dpadmm.reporting.figures.times import times_figure
from dpadmm.reporting.picture import Picture, with_optimum
from dpadmm.reporting.series import begun
from dpadmm.results import Results

Maker = Callable[[Results, str], Picture | None]

_MAKERS: dict[str, list[Maker]] = {
    "fig1": [agents_figure],
    "fig2": [objective_figure],
    "fig3": [partial(methods_figure, model="local"), partial(methods_figure, model="global")],
    "fig4": [agents_figure],
    "fig6": [objective_figure],
    "fig7": [partial(methods_figure, model="local"), partial(methods_figure, model="global")],
    "table3": [times_figure],
    "bounds": [bounds_figure],
    "choices": [choices_figure],
}


PAPER = tuple(_MAKERS)
"""Experiments that stand for something in the paper; any other is a comparison of methods."""


def pictures(results: Results) -> list[Picture]:
    """Every figure whose experiment is in the results."""
    found = [
        picture
        for experiment in sorted(begun(results), key=lambda name: name not in PAPER)
        for maker in _MAKERS.get(experiment, [comparison_picture])
        if (picture := maker(with_optimum(results, experiment), experiment)) is not None
    ]
    epsilon = epsilon_figure(results, "epsilon") if set(PAPER) & set(begun(results)) else None
    return found + ([epsilon] if epsilon else [])


__all__ = ["PAPER", "Picture", "pictures"]
