"""Figures exist for their experiments, match the results, and support other values than the paper's."""

from __future__ import annotations

import numpy as np
import pytest
from looping import case
from paper_runs import modified

from reproduction.figures import comparison_picture, pictures
from reproduction.measurements import gaps
from reproduction.series import by_round, with_optimum

NAMES = [
    "fig1", "fig2", "fig3", "fig3_global", "fig4", "fig6", "fig7", "fig7_global", "table3", "bounds",
    "choices", "schedule", "lambda", "epsilon",
]  # fmt: skip


@pytest.fixture(scope="module")
def by_name(paper_results):
    return {picture.name: picture for picture in pictures(paper_results)}


def test_every_experiment_has_its_figure(by_name):
    assert list(by_name) == NAMES


def test_captions_name_local_or_global_models(by_name):
    for name in NAMES:
        if name not in ("table3", "epsilon"):
            assert "local" in by_name[name].caption or "global" in by_name[name].caption, name
    assert all(picture.caption.endswith(".") for picture in by_name.values())


def test_curves_are_means_of_the_results(by_name, paper_results):
    panel = by_name["fig7"].figure.axes[1]
    assert panel.get_title(loc="left") == "(b) ε per round = 0.1, δ = 10⁻³"
    lines = {line.get_label(): line for line in panel.lines}
    for label, method in (("DP-ADMM", "dp_admm"), ("PVP", "admm_pvp")):
        group = paper_results.select("fig7").select(method=method, round_epsilon=0.1, delta=1e-3)
        assert np.allclose(lines[label].get_ydata(), by_round(group, "train_loss_local").mean), label
    (best,) = set(lines["non-private optimum"].get_ydata())
    optimum = paper_results.select("fig7").select(method="centralized")
    assert best == pytest.approx(optimum.frame["train_loss_global"].mean())


def test_one_panel_per_delta_and_one_line_per_epsilon(by_name):
    panels = by_name["fig6"].figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == ["(a) δ = 10⁻³", "(b) δ = 10⁻⁴"]
    labels = [line.get_label() for line in panels[0].lines]
    assert labels == ["ε per round 0.05", "ε per round 0.1", "optimum, n·F*"]


def test_figures_support_other_values(paper_results):
    """Another ε, only one ε, and fewer agents: figures do not assume the paper's values."""
    few = paper_results.select(round_epsilon=[0.05, None], n_agents=[4, 8])
    other = modified(few, "round_epsilon", lambda values: np.full_like(values, 0.7), round_epsilon=0.05)
    found = {picture.name: picture for picture in pictures(other)}
    assert set(NAMES) - {"bounds", "choices", "schedule"} <= set(found)
    assert found["fig7"].figure.axes[0].get_title(loc="left") == "(a) ε per round = 0.7, δ = 10⁻³"


def test_some_experiments_give_some_figures(paper_results):
    part = paper_results.select("fig4")
    assert [picture.name for picture in pictures(part)] == ["fig4", "epsilon"]  # not those that share cells
    assert [picture.name for picture in pictures(paper_results.select("bounds"))] == ["bounds", "epsilon"]


def test_distance_to_the_optimum_is_computed_per_split(paper_results):
    found = gaps(with_optimum(paper_results, "bounds"))
    assert [(gap.regularizer, gap.budget) for gap in found] == [("l1", 0.1), ("l2", 0.1)]
    runs = paper_results.select("bounds").select(method="dp_admm", regularizer="l2", round=100)
    best = paper_results.select("bounds").select(method="centralized", regularizer="l2")
    distance = runs.frame["augmented_objective"].mean() - 4 * best.frame["objective_global"].mean()
    assert found[1].measured.mean[-1] == pytest.approx(distance)
    assert found[1].bound[-1] == runs.frame["bound"].iloc[0]


def test_comparisons_have_one_panel_per_number_of_agents(comparison_results):
    (picture,) = pictures(comparison_results)
    error = picture.figure.axes
    assert [panel.get_title(loc="left") for panel in error] == ["2 agents", "4 agents", "", ""]
    assert [line.get_label() for line in error[0].lines] == ["DP-ADMM", "DPSGD", "non-private optimum"]
    one = comparison_results.select(method="dp_admm", epsilon=0.5, n_agents=2, seed=1)
    heights = error[0].lines[0].get_ydata()[0]
    two = comparison_results.select(method="dp_admm", epsilon=0.5, n_agents=2, seed=2)
    ends = [item.last().frame["test_error_global"].iloc[0] for item in (one, two)]
    assert heights == pytest.approx(np.mean(ends))


def test_comparisons_with_fewer_values(comparison_results):
    for equals in [
        {"epsilon": [0.5, None]},
        {"epsilon": [0.5, None], "n_agents": [2, 10]},
        {"method": "dp_sgd"},
        {"seed": 1},
    ]:
        with case(equals):
            (picture,) = pictures(comparison_results.select(None, **equals))
            assert any(len(axes.lines) or len(axes.containers) for axes in picture.figure.axes)


@pytest.mark.parametrize("equals", [{}, {"epsilon": [0.5, None], "n_agents": [2, 10]}], ids=["lines", "points"])
@pytest.mark.parametrize(("factor", "scale"), [(1.0, "linear"), (50.0, "log")])
def test_wide_ranges_use_a_logarithmic_scale(comparison_results, equals, factor, scale):
    lines = comparison_results.select(None, **equals)
    other = modified(lines, "train_loss_global", lambda values: values * factor, method="dp_sgd")
    picture = comparison_picture(other, "comparison")
    half = len(picture.figure.axes) // 2
    scales = [axes.get_yscale() for axes in picture.figure.axes]
    assert scales == ["linear"] * half + [scale] * half
    assert ("logarithmic" in picture.caption) == (scale == "log")


def test_interrupted_comparison_has_a_complete_caption(comparison_results):
    caption = comparison_picture(comparison_results.select(method="centralized", seed=1), "comparison").caption
    assert caption.startswith("The non-private optimum alone at the end of the runs (synthetic, L2, 1 random")
    assert "1 splits" not in caption
    without = comparison_picture(comparison_results.select(method="dp_sgd"), "comparison").caption
    assert without.startswith("DPSGD at the end")
    assert "dotted" not in without


def test_method_without_noise_appears_in_every_panel(comparison_results):
    two = comparison_results.select(method=["dp_admm", "dp_sgd"])
    some = two.keep((two.frame["method"] == "dp_admm") | (two.frame["epsilon"] == 0.5))
    lines = modified(some, "epsilon", lambda values: values * np.nan, method="dp_sgd")
    panels = comparison_picture(lines, "comparison").figure.axes[2:]
    for axes, n in zip(panels, (2, 4), strict=True):
        (heights,) = [line.get_ydata() for line in axes.lines if line.get_label() == "DPSGD"]
        mine = lines.select(method="dp_sgd", n_agents=n).last().frame["train_loss_global"]
        assert heights == pytest.approx(mine.mean())


def test_markers_of_the_paper_do_not_hide_those_of_dp_admm(by_name):
    axes = by_name["table3"].figure.axes[0]
    ours = [label.get_text() for label in axes.get_yticklabels()].index("DP-ADMM")
    measured = [line for line in axes.lines if str(line.get_label()).startswith("measured")]
    paper = [line for line in axes.lines if str(line.get_label()).startswith("paper")]
    assert any(round(y) == ours for line in measured for y in line.get_ydata())
    assert paper
    assert not any(round(y) == ours for line in paper for y in line.get_ydata())
