"""The page ``docs/accuracy.md``: the accuracy suite's tables, from its lines alone."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

import dpadmm
from dpadmm.experiments.accuracy import (
    AGENTS,
    CHOSE_CONSTANTS,
    CONTENDERS,
    DELTA,
    EPSILONS,
    MOST_ROWS,
    REST,
    Deficit,
    Entry,
    Line,
    Score,
    Scores,
    behind,
    scores,
    sets,
    standard_error,
)

PEERS = {
    "opacus_curator": "Opacus, one curator",
    "opacus_agents": "Opacus, averaged",
    "diffprivlib_curator": "diffprivlib, one curator",
    "diffprivlib_agents": "diffprivlib, averaged",
}
"""Lines of ``benchmarks/peers``: who they are."""

_HEAD = """\
# Accuracy

`auto` beside the other methods and the optimum without privacy, at equal exact total (ε, δ). Every number on this page is made by

    dpadmm compare --suite accuracy -o runs/accuracy        # resumes where it was stopped
    dpadmm compare --suite accuracy -o runs/accuracy --only auto    # the method changed: only its runs are made again
    make peers                                               # other libraries, each in its own environment

which writes `accuracy.csv` (one line a run) and this page. {runs} runs; {splits} random splits of each, four fifths to train and one fifth to \
test; the same rows, splits and agents for all methods; δ = {delta:g}. dpadmm {version}, Python {python}, NumPy {numpy}.

- **Error** is the share of test rows that get the wrong class, in percent; for numbers the root mean square error, in hundredths of the label's \
half range. ± is the standard error of the mean over splits. **Log-loss** is in brackets where it says so (for numbers: half the mean squared error).
- Noise is local: every agent's own, and nobody is trusted but itself. Agents hold equal random shares.
- No setting depends on rows. The one exception is *{tuned}*: the best of three learning rates, chosen by the test rows, which no private user can \
do; it is shown, and is no part of "the best of the rest": {rest}.
- Numbers are centred and scaled by constants of the declaration (`src/dpadmm/data/datasets/tables.toml`), which were rounded from the tables' own \
means and deviations, as a codebook gives them; rows are shortened to norm 1. Tables of more than {most:,} rows are sampled once.
- Had a say in the constants of `auto`: {chose}. All other data sets had none.
"""


def page(lines: Sequence[Line], peers: Sequence[Line] = ()) -> str:
    """The whole page."""
    found = scores([*lines, *peers])
    entries = [each for each in sets() if any(place.set == each.name for place in found)]
    parts = [
        _HEAD.format(
            runs=f"{len(lines):,}",
            splits=max((len(each.seeds) for here in found.values() for each in here.values()), default=0),
            delta=DELTA,
            version=dpadmm.__version__,
            python=platform.python_version(),
            numpy=np.__version__,
            tuned=CONTENDERS["dp_sgd_tuned"].title,
            rest=", ".join(CONTENDERS[name].title for name in REST),
            most=MOST_ROWS,
            chose=", ".join(CHOSE_CONSTANTS),
        ),
        _summary(found, entries),
        _losses(found),
        _peers(found) if peers else "",
        _data(entries),
        _tables(found, entries),
    ]
    return "\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(each) + " |" for each in lines) + "\n"


def _summary(found: Scores, entries: Sequence[Entry]) -> str:
    """In how many data sets auto is as good as the rest, and mean errors over data sets of classes."""
    worse = {each.place for each in behind(found)}
    worse_loss = {each.place for each in behind(found, measure="losses")}
    worse_tuned = {each.place for each in behind(found, ["dp_sgd_tuned"])}
    of_classes = {each.name for each in entries if each.task != "regression"}
    rows = []
    for n in AGENTS:
        for epsilon in EPSILONS:
            places = [place for place in found if (place.agents, place.epsilon) == (n, epsilon)]
            places = [place for place in places if "auto" in found[place] and any(m in found[place] for m in REST)]
            if not places:
                continue
            means = []
            shared = [p for p in places if p.set in of_classes and all(m in found[p] for m in _everywhere(found))]
            for name in CONTENDERS:
                have = name in _everywhere(found) and shared
                means.append(f"{100 * np.mean([found[p][name].error for p in shared]):.1f}" if have else "–")
            counts = [f"{len(places) - sum(p in lost for p in places)} of {len(places)}" for lost in (worse, worse_loss)]
            tuned = f"{len(places) - sum(p in worse_tuned for p in places)} of {len(places)}"
            rows.append([f"{n}, {epsilon:g}", *counts, tuned, *means])
    head = ["agents, ε", "not behind the rest", "by log-loss", "not behind tuned DP-SGD"]
    head += [each.title for each in CONTENDERS.values()]
    return (
        "## Summary\n\nData sets where `auto` is not behind the best of the rest by more than one standard error (of the "
        "difference on the same splits; the best is picked afterwards, which favours the rest), and mean errors over the data "
        "sets with classes.\n\n" + _table(head, rows)
    )


def _everywhere(found: Scores) -> list[str]:
    """Contenders that apply to all classes; objective perturbation does not know more than two."""
    return [name for name in CONTENDERS if name != "objective_perturbation"]


def _losses(found: Scores) -> str:
    """What auto loses."""
    parts = ["## What `auto` loses\n"]
    for measure, words in (("errors", "By error"), ("losses", "By log-loss")):
        lost = behind(found, measure=measure)
        n = sum("auto" in here and any(name in here for name in REST) for here in found.values())
        parts.append(f"{words}, behind the best of the rest by more than one standard error: {len(lost)} of {n} cells.\n")
        if lost:
            parts.append(_table(["data set, agents, ε", "auto", "best of the rest", "behind by"], map(_lost(measure), lost)))
    return "\n".join(parts)


def _lost(measure: str):  # type: ignore[no-untyped-def]
    unit, digits = (100.0, 2) if measure == "errors" else (1.0, 3)

    def row(each: Deficit) -> list[str]:
        place = f"{each.place.set}, {each.place.agents}, {each.place.epsilon:g}"
        best = f"{unit * each.theirs:.{digits}f} {CONTENDERS[each.best].title}"
        gap = f"{unit * each.gap:.{digits}f} ± {unit * each.error:.{digits}f}"
        return [place, f"{unit * each.mine:.{digits}f}", best, gap]

    return row


def _peers(found: Scores) -> str:
    """Other libraries on the same rows."""
    names = [name for name in PEERS if any(name in here for here in found.values())]
    rows = []
    for place, here in found.items():
        if any(name in here for name in names):
            cells = [_cell(here.get(name)) for name in ("auto", *names, "optimum")]
            rows.append([f"{place.set}, {place.agents}, {place.epsilon:g}", *cells])
    return (
        "## Other libraries\n\nAt equal (ε, δ), on the same encoded rows, splits and agents; error with log-loss in brackets. **A "
        "curator sees all rows** and has to be trusted by everyone; it does not protect agents from it, so its columns say what "
        "trust is worth and are no alternative to the others. Averaged: every agent trains on its own rows with the whole budget, "
        "and the models are averaged. Opacus: DP-SGD, Poisson sampling, the best of three learning rates by the test rows. "
        "diffprivlib: pure ε (δ = 0), a stronger promise.\n\n"
        + _table(["data set, agents, ε", "auto", *(PEERS[name] for name in names), "no privacy"], rows)
    )


def _data(entries: Sequence[Entry]) -> str:
    rows = [
        [each.name, each.about, each.task, f"{each.n_rows:,}", str(each.columns), each.source] for each in entries
    ]
    return "## Data sets\n\n" + _table(["name", "what", "labels", "rows", "columns", "from"], rows)


def _tables(found: Scores, entries: Sequence[Entry]) -> str:
    parts = ["## All results\n", "Error ± standard error (log-loss). – where a method does not apply or diverged.\n"]
    head = ["agents, ε", *(each.title for name, each in CONTENDERS.items() if name != "optimum")]
    for name, group in groupby(found, key=lambda place: place.set):
        places = list(group)
        optimum = next((found[place]["optimum"] for place in places if "optimum" in found[place]), None)
        rows = []
        for place in places:
            here = found[place]
            cells = [_cell(here.get(each)) for each in CONTENDERS if each != "optimum"]
            rows.append([f"{place.agents}, {place.epsilon:g}", *cells])
        parts += [f"### {name}\n", f"No privacy: {_cell(optimum)}.\n", _table(head, rows)]
    return "\n".join(parts)


def _cell(score: Score | None) -> str:
    if score is None:
        return "–"
    error = standard_error(score.errors)
    spread = "" if math.isnan(error) else f" ± {100 * error:.1f}"
    loss = "" if math.isnan(score.loss) else f" ({score.loss:.3f})"
    return f"{100 * score.error:.1f}{spread}{loss}"
