"""What happens with other values of the constants that the paper chose on the private rows."""

from __future__ import annotations

from dpadmm.reporting.picture import Picture, about, optimum, spread
from dpadmm.reporting.series import BUDGETS, budget_column, by_end, distinct, done, has, where
from dpadmm.reporting.style import at_values, draw, dress, floor, legend, new_figure, power, steps
from dpadmm.results import Results


def choices_figure(results: Results, name: str) -> Picture | None:
    """Error and loss of the global model against c_w, one line per λ/n."""
    lines = where(done(results), method="dp_admm")
    if not len(lines):
        return None
    budget = budget_column(lines)
    value = max(distinct(lines, budget))
    lines = where(lines, **{budget: value})
    radii, shares = distinct(lines, "weight_radius"), distinct(lines, "reg_share")
    if len(radii) < 2 and len(shares) < 2:
        return None
    figure = new_figure(9.2, 4.0)
    error = "test_error_global" if has(lines, "test_error_global") else "train_error_global"
    panels = figure.subplots(1, 2)
    for axes, column, title in zip(
        panels,
        (error, "train_loss_global"),
        ("(a) error at the end", "(b) training loss at the end"),
        strict=True,
    ):
        for share, look in zip(shares, steps(len(shares)), strict=True):
            draw(
                axes,
                by_end(where(lines, reg_share=share), column, "weight_radius"),
                look,
                label=f"λ/n = {power(share)}",
            )
        floor(axes, optimum(results, column), "non-private optimum")
        at_values(axes, radii)
        y = f"{column.split('_')[1]}, global model"
        dress(axes, title=title, x="c_w, guessed norm of the best weights", y=y, percent="error" in column)
    legend(figure, panels[0])
    caption = (
        "DP-ADMM with other values of c_w and λ/n, which the paper took from the private rows "
        f"({about(lines)}, {BUDGETS[budget]} {value:g}). Error and training loss of the global model at the "
        f"end. {spread(lines)}The dotted line is the non-private optimum."
    )
    return Picture(name, "Constants chosen on private rows", caption, figure)
