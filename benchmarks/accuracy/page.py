"""The page ``docs/explanation/accuracy.md``: the accuracy suite's tables, from its lines alone."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import jinja2
import numpy as np

import dpadmm
from benchmarks.accuracy.suite import (
    AGENTS,
    CHOSE_CONSTANTS,
    CONTENDERS,
    DELTA,
    EPSILONS,
    MOST_ROWS,
    REST,
    SPLITS,
    Deficit,
    Entry,
    Line,
    Place,
    Score,
    Scores,
    behind,
    min_honest_sites,
    scores,
    sets,
    standard_error,
)
from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.accounting.gaussian import exact_epsilon

PEERS = {
    "opacus_curator": "Opacus, one curator",
    "opacus_agents": "Opacus, averaged",
    "diffprivlib_curator": "diffprivlib, one curator",
    "diffprivlib_agents": "diffprivlib, averaged",
}
"""Who the lines of ``benchmarks/peers`` are of."""

ANY_CLASSES = [name for name, each in CONTENDERS.items() if name != "objective_perturbation" and not each.secure]
"""Contenders that know more than two classes: means over data sets are over the same data sets for all."""


def page(lines: Sequence[Line], peers: Sequence[Line] = ()) -> str:
    """The whole page."""
    found = scores([*lines, *peers])
    entries = [each for each in sets() if any(place.set == each.name for place in found)]
    by_error, by_loss = behind(found), behind(found, measure="losses")
    fewest = min((len(here["auto"].seeds) for here in found.values() if "auto" in here), default=0)
    words = {
        "runs": f"{len(lines):,}",
        "splits": fewest,
        "all_sets": len(sets()),
        "all_splits": SPLITS,
        "few_splits": _how_few(len(entries), fewest),
        "delta": f"{DELTA:g}",
        "version": dpadmm.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tuned": CONTENDERS["dp_sgd_tuned"].title,
        "rest": ", ".join(CONTENDERS[name].title for name in REST),
        "secure": CONTENDERS["auto_secure"].title,
        "alone": ", ".join(f"{_alone(1.0, n):.1f} with {n}" for n in AGENTS if n > 1),
        "most": f"{MOST_ROWS:,}",
        "chose": ", ".join(CHOSE_CONSTANTS),
        "cells": sum(_compared(here) for here in found.values()),
        "summary": _summary(found, entries),
        "lost_errors": len(by_error),
        "errors": _deficits(by_error, unit=100.0, digits=2),
        "lost_losses": len(by_loss),
        "losses": _deficits(by_loss, unit=1.0, digits=3),
        "peers": _peers(found),
        "data": _data(entries),
        "tables": [_of_set(name, list(places), found) for name, places in groupby(found, key=lambda place: place.set)],
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.md").render(words)


def _alone(epsilon: float, n_agents: int) -> float:
    """Total ε with secure aggregation if all other agents collude."""
    return float(
        exact_epsilon(math.sqrt(min_honest_sites(n_agents)) / total_noise_multiplier(epsilon, DELTA, 1), DELTA)
    )


def _how_few(n_sets: int, n_splits: int) -> str:
    """Describe a run of part of the suite; empty for the whole suite."""
    if n_sets == len(sets()) and n_splits >= SPLITS:
        return ""
    return f"here are {n_sets} and at least {n_splits}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    marks = ["---" if k < left else "--:" for k in range(len(head))]
    return "\n".join("| " + " | ".join(each) + " |" for each in (head, marks, *rows))


def _compared(here: dict[str, Score]) -> bool:
    return "auto" in here and any(name in here for name in REST)


def _where(place: Place) -> str:
    return f"{place.set}, {place.agents}, {place.epsilon:g}"


def _summary(found: Scores, entries: Sequence[Entry]) -> str:
    """In how many data sets auto is as good as the rest, and mean errors over data sets with classes."""
    lost = [
        {each.place for each in behind(found)},
        {each.place for each in behind(found, paired=False)},
        {each.place for each in behind(found, measure="losses")},
        {each.place for each in behind(found, ["dp_sgd_tuned"])},
    ]
    of_classes = {each.name for each in entries if each.task != "regression"}
    rows = []
    for n, epsilon in ((n, epsilon) for n in AGENTS for epsilon in EPSILONS):
        places = [p for p in found if (p.agents, p.epsilon) == (n, epsilon) and _compared(found[p])]
        if not places:
            continue
        counts = [f"{len(places) - len(worse.intersection(places))} of {len(places)}" for worse in lost]
        shared = [p for p in places if p.set in of_classes and all(name in found[p] for name in ANY_CLASSES)]
        means = [_mean([found[p].get(name) for p in shared]) for name in CONTENDERS]
        rows.append([f"{n}, {epsilon:g}", *counts, *means])
    head = ["agents, ε", "not behind the rest", "by more than its ±", "by log-loss", "not behind tuned DP-SGD"]
    return _table([*head, *(each.title for each in CONTENDERS.values())], rows)


def _mean(found: Sequence[Score | None]) -> str:
    """Mean error in percent, where it is known of all data sets."""
    known = [each.error for each in found if each is not None]
    return f"{100 * np.mean(known):.1f}" if known and len(known) == len(found) else "–"


def _deficits(lost: Sequence[Deficit], *, unit: float, digits: int) -> str:
    rows = [
        [
            _where(each.place),
            f"{unit * each.mine:.{digits}f}",
            f"{unit * each.theirs:.{digits}f} {CONTENDERS[each.best].title}",
            f"{unit * each.gap:.{digits}f} ± {unit * each.error:.{digits}f}",
        ]
        for each in lost
    ]
    return _table(["data set, agents, ε", "auto", "best of the rest", "behind by"], rows) if rows else "None."


def _peers(found: Scores) -> str:
    """Other libraries on the same rows; empty if there are none."""
    names = [name for name in PEERS if any(name in here for here in found.values())]
    rows = [
        [_where(place), *(_cell(here.get(name)) for name in ("auto", *names, "optimum"))]
        for place, here in found.items()
        if any(name in here for name in names)
    ]
    head = ["data set, agents, ε", "auto", *(PEERS[name] for name in names), "no privacy"]
    return _table(head, rows) if rows else ""


def _data(entries: Sequence[Entry]) -> str:
    rows = [[each.name, each.about, each.task, each.source, f"{each.n_rows:,}", str(each.columns)] for each in entries]
    return _table(["name", "what", "labels", "from", "rows", "columns"], rows, left=4)


def _of_set(name: str, places: Sequence[Place], found: Scores) -> tuple[str, str, str]:
    """Name, optimum, and the table of everything on one data set."""
    shown = [each for each in CONTENDERS if each != "optimum"]
    rows = [[f"{p.agents}, {p.epsilon:g}", *(_cell(found[p].get(each)) for each in shown)] for p in places]
    optimum = next((found[place]["optimum"] for place in places if "optimum" in found[place]), None)
    return name, _cell(optimum), _table(["agents, ε", *(CONTENDERS[each].title for each in shown)], rows)


def _cell(score: Score | None) -> str:
    if score is None:
        return "–"
    error = standard_error(score.errors)
    spread = "" if math.isnan(error) else f" ± {100 * error:.1f}"
    loss = "" if math.isnan(score.loss) else f" ({score.loss:.3f})"
    return f"{100 * score.error:.1f}{spread}{loss}"
