"""Style of figures: colors from dark to light with markers and dashes, readable in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from dpadmm.files.atomic import atomic_file
from dpadmm.matrices.arrays import Floats

GREY = "#8a8a8a"
Dash = str | tuple[float, tuple[float, ...]]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Dash, ...] = (
    "-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (1, 1))
)  # fmt: skip
# from dark to light
_METHODS = ("#0b1f4b", "#7a1f5c", "#b5432a", "#2f8a57", "#d98e2b", "#79a9d6", "#8a8a8a", "#c9a0c9")


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over seeds, at each ``x``."""

    x: Floats
    mean: Floats
    std: Floats
    n_seeds: int

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Picture:
    """A figure with its file name, its heading, and a caption that is also its alternative text."""

    name: str
    title: str
    caption: str
    figure: Figure

    def _repr_png_(self) -> bytes:
        """Return the image, which a notebook shows."""
        out = BytesIO()
        self.figure.savefig(out, format="png")
        return out.getvalue()


@dataclass(frozen=True)
class Look:
    color: Any
    marker: str
    dash: Dash


def steps(count: int) -> list[Look]:
    """Return the looks of an ordered series, from dark to light."""
    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.82, max(count, 2)))
    return [_look(i, tuple(colors[i])) for i in range(count)]


def kinds(labels: list[str]) -> dict[str, Look]:
    """Return the looks of unordered series, such as methods, by label."""
    return {label: _look(i, _METHODS[i % len(_METHODS)]) for i, label in enumerate(labels)}


def _look(i: int, color: Any) -> Look:
    return Look(color, _MARKERS[i % len(_MARKERS)], _DASHES[i % len(_DASHES)])


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure whose labels stay inside."""
    return Figure(figsize=(width, height), layout="constrained", dpi=200)


def draw(
    axes: Axes, curve: Curve, look: Look, *, label: str | None = None, band: bool = True, hollow: bool = False
) -> None:
    """Draw a line with markers and a band of ± one standard deviation."""
    if not len(curve):
        return
    face, edge, width = ("white", look.color, 1.0) if hollow else (look.color, "black", 0.5)
    axes.plot(
        curve.x, curve.mean, color=look.color, linestyle=(0, (1.5, 1.5)) if hollow else look.dash,
        linewidth=1.5, marker=look.marker, markersize=5, markevery=max(1, len(curve) // 7),
        markerfacecolor=face, markeredgecolor=edge, markeredgewidth=width, label=label,
    )  # fmt: skip
    if band and curve.n_seeds > 1:
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axes.fill_between(curve.x, low, high, color=look.color, alpha=0.16, linewidth=0)


def floor(axes: Axes, value: float, label: str | None = None) -> None:
    """Draw the non-private optimum as a horizontal line."""
    if np.isfinite(value):
        axes.axhline(value, color="black", linestyle=(0, (1, 2)), linewidth=1.3, label=label)


def dress(axes: Axes, *, title: str = "", x: str = "", y: str = "", percent: bool = False) -> None:
    """Set titles and units, draw a light grid, and remove the box."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8.5)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def at_values(axes: Axes, values: list[float]) -> None:
    """Set a logarithmic x axis with ticks at exactly these values."""
    axes.set_xscale("log")
    axes.set_xticks(values)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()


def logarithmic(*axes: XAxis | YAxis) -> None:
    """Set logarithmic axes with plain numbers."""
    for each in axes:
        each.axes.set(**{f"{each.axis_name}scale": "log"})
        low, high = each.get_view_interval()
        each.set_major_locator(LogLocator(subs=(1.0,) if high > 200.0 * low else (1.0, 2.0, 5.0)))
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """Return a number for an axis: 0.05, 100, or 10⁻⁵ for small powers of ten.

    Examples
    --------
    >>> power(0.05), power(500.0), power(1e-5)
    ('0.05', '500', '10⁻⁵')
    """
    exponent = np.log10(value) if value > 0 else 0.0
    if exponent <= -3 and abs(exponent - round(exponent)) < 1e-9:
        return "10" + str(round(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:g}"


def plain_text(name: str) -> str:
    """Escape a name, so that matplotlib does not read it as a formula."""
    return name.replace("$", r"\$")


def legend(figure: Figure, axes: Axes, *, columns: int = 6) -> None:
    """Draw one legend below all panels, from the lines of one panel."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        rows = -(-len(labels) // columns)
        figure.legend(
            handles, labels, loc="outside lower center", ncols=-(-len(labels) // rows), frameon=False,
            fontsize=9, handlelength=3.2,
        )  # fmt: skip


def save_figure(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, or the given ``kinds``. Return the paths."""
    paths = [stem.with_suffix(f".{kind}") for kind in kinds]
    with matplotlib.rc_context({"svg.hashsalt": "dpadmm", "svg.fonttype": "none"}):
        for path in paths:
            undated = {"Date": None} if path.suffix == ".svg" else None
            with atomic_file(path) as out:
                figure.savefig(out, format=path.suffix[1:], metadata=undated)
            figure.set_layout_engine("none")  # keep the layout for the next file
    return paths
