"""The figures of the site, drawn when it is built, each for a light and a dark page: into docs/figures/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from sphinx.application import Sphinx

FIXED = {"svg.hashsalt": "dpadmm", "svg.fonttype": "path", "font.size": 10, "font.family": "DejaVu Sans"}


class Palette(NamedTuple):
    """Colours of a page: its text, lines, and what stands out."""

    name: str
    text: str
    line: str
    fill: str
    private: str
    public: str
    series: tuple[str, ...]


PALETTES = (
    Palette("light", "#1b2430", "#5b6673", "#eef2f6", "#fbe9d7", "#dcebf9",
            ("#b5432a", "#1f5fa8", "#0b1f4b", "#7a4d9c", "#5b6673")),
    Palette("dark", "#e8edf2", "#9aa7b4", "#222a33", "#4a341d", "#1d3a57",
            ("#ff9d80", "#7fb8f0", "#cfe4fb", "#d0a6ee", "#9aa7b4")),
)  # fmt: skip


def setup(app: Sphinx) -> dict[str, Any]:
    folder = Path(app.srcdir) / "figures"
    folder.mkdir(exist_ok=True)
    rows = table_rows((Path(app.srcdir) / "explanation" / "secure-aggregation.md").read_text(encoding="utf-8"))
    with matplotlib.rc_context(FIXED):
        for palette in PALETTES:
            _save(folder / f"round-{palette.name}.svg", _round(palette))
            _save(folder / f"peers-{palette.name}.svg", _peers(palette, rows))
    return {"parallel_write_safe": True}


def _save(path: Path, figure: Figure) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})


# A round


def _round(palette: Palette) -> Figure:
    """Draw three owners with the steps of a round, and the server, which sees only noisy answers."""
    figure = Figure(figsize=(4.8, 5.0))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 48), ylim=(0, 50))
    axes.axis("off")
    for i, name in enumerate("ABC"):
        left = 1.0 + 13.6 * i
        _box(axes, palette, left, 17.0, 12.2, 32.0, palette.private, f"owner {name}", bold=True, top=True)
        steps = ("private\nrows", "clipped\nsum", "+ noise", "ledger")
        for j, step in enumerate(steps):
            bottom = 38.6 - 6.7 * j
            _box(axes, palette, left + 1.1, bottom, 10.0, 5.0, palette.fill, step)
            if j:
                _arrow(axes, palette, (left + 6.1, bottom + 6.6), (left + 6.1, bottom + 5.1))
        _arrow(axes, palette, (left + 6.1, 18.4), (left + 6.1, 12.6))
    _box(
        axes,
        palette,
        1.0,
        4.4,
        39.4,
        8.0,
        palette.public,
        "server: mean of the noisy sums,\nthen the next model",
        bold=True,
    )
    _arrow(axes, palette, (40.6, 8.4), (45.4, 8.4), head=False)
    _arrow(axes, palette, (45.4, 8.4), (45.4, 33.0), head=False)
    _arrow(axes, palette, (45.4, 33.0), (40.6, 33.0))
    axes.text(46.6, 20.7, "model, public", rotation=90, ha="center", va="center", color=palette.text)
    behind = {"facecolor": "#ffffff" if palette.name == "light" else "#14181e", "edgecolor": "none", "pad": 1.5}
    words = "noisy sums"
    axes.text(20.7, 14.9, words, ha="center", va="center", color=palette.text, style="italic", bbox=behind)
    axes.text(20.7, 1.9, "each release is in the ledger before it leaves", ha="center", va="center", color=palette.text)
    return figure


def _box(
    axes: Axes, palette: Palette, x: float, y: float, width: float, height: float, fill: str, text: str, *,
    bold: bool = False, top: bool = False,
) -> None:  # fmt: skip
    style = "round,pad=0,rounding_size=1"
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=palette.line, linewidth=1)
    )
    at = (x + width / 2, y + height - 2.9 if top else y + height / 2)
    axes.text(*at, text, ha="center", va="center", color=palette.text, fontweight="bold" if bold else "normal",
              linespacing=1.15)  # fmt: skip


def _arrow(
    axes: Axes, palette: Palette, start: tuple[float, float], end: tuple[float, float], *, head: bool = True
) -> None:
    style = "-|>,head_length=4,head_width=2.4" if head else "-"
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle=style, color=palette.line, shrinkA=0, shrinkB=0, linewidth=1.4)
    )


# Accuracy compared with others


def table_rows(page: str) -> dict[str, list[tuple[float, float, float]]]:
    """Read ε, error and its ± from the table of test errors in docs/explanation/secure-aggregation.md.

    The figure then has the numbers of that page, which also has their command (make adult).
    """
    lines = page.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| test error in percent at ε ="))
    epsilons = [float(cell) for cell in _cells(lines[head])[2:]]
    rows = {}
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        name, aggregation, *cells = _cells(line)
        pairs = [tuple(float(part) for part in cell.split(" ± ")) for cell in cells]
        rows[f"{name.replace('`', '')}; trust: {aggregation}"] = [
            (e, *pair) for e, pair in zip(epsilons, pairs, strict=True)
        ]
    return rows


def _cells(line: str) -> list[str]:
    return [re.sub(r"\s+", " ", cell.strip()) for cell in line.strip().strip("|").split("|")]


def _peers(palette: Palette, rows: dict[str, list[tuple[float, float, float]]]) -> Figure:
    """Plot test error by ε: one line per method, with the trust it requires."""
    figure = Figure(figsize=(4.8, 4.9), layout="constrained")
    axes = figure.add_subplot()
    dashes = ("-", "-", (0, (6, 2)), (0, (2, 1.5)), (0, (1, 1)))
    for (name, points), color, dash, marker in zip(rows.items(), palette.series, dashes, "os^Dx", strict=True):
        epsilon, error, spread = zip(*points, strict=True)
        axes.errorbar(epsilon, error, spread, color=color, linestyle=dash, marker=marker, markersize=5, capsize=3,
                      label=name.replace(", h = n/2", ", half honest").replace(", h = n", ", all honest"))  # fmt: skip
    axes.set_xlabel("total ε of the run")
    axes.set_ylabel("test error on Adult, percent")
    axes.set_xticks([point[0] for point in next(iter(rows.values()))])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=palette.line, alpha=0.25)
    for part in (axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()):
        part.set_color(palette.text)
    axes.tick_params(color=palette.line)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.line)
    legend = figure.legend(loc="outside lower left", frameon=False, fontsize=9)
    for text in legend.get_texts():
        text.set_color(palette.text)
    return figure
