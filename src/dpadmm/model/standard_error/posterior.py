"""Tables that agree with the public transcript: a Markov chain over typical tables.

A step proposes other parameters for one column (``√(1−β²)·u + β·normal``, which leaves their distribution as
it is) and is taken by the likelihood of the transcript alone. So where the transcript says nothing, tables
stay as typical as they were; where curvature matters it says much, since noise that was pulled back shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.model.standard_error.curvature import Curvature, curvature_along, mean_outer, spread_of_agents
from dpadmm.model.standard_error.recursion import Recursion
from dpadmm.model.standard_error.transcript import evidence, start_variance, transcript_of
from dpadmm.model.standard_error.typical import TypicalTable
from dpadmm.study.study import Study

CHAINS, STARTS = 4, 8
"""Every chain begins with the best of so many random tables."""

SWEEPS, PASSES = 48, 2
"""Passes over the columns between which the rows' curvature is not looked at again; the first half of the
sweeps only leads to where the transcript is."""

WORK = 3e9
"""Multiplications of a chain, above which it has fewer sweeps."""

STRIDES = (0.15, 0.4, 1.0)


@dataclass(frozen=True)
class Guess:
    """Curvature of the mean loss, ``matrix`` (dp, dp), and its ``relative`` size by round (t,)."""

    matrix: Floats
    relative: Floats


def guesses(study: Study, recursion: Recursion, history: Floats) -> Iterator[Guess]:
    """Curvatures that agree with the schema and with the consensus of every round, (t + 1, d, p)."""
    for seed in range(CHAINS):
        yield from _chain(study, recursion, history, np.random.default_rng(seed))


def _chain(study: Study, recursion: Recursion, history: Floats, rng: np.random.Generator) -> Iterator[Guess]:
    problem, p = study.problem, history.shape[2]
    transcript = transcript_of(problem, recursion, history)
    spread = spread_of_agents(recursion, problem.loss, history.shape[1])

    def seen_from(rows: Floats) -> tuple[Curvature, Floats]:
        found = curvature_along(history, rows, loss=problem.loss, spread=spread, rng=rng)
        return found, mean_outer(rows, rows, found.of_rows)

    tables = [TypicalTable(study, rng) for _ in range(STARTS)]
    views = [seen_from(table.rows()) for table in tables]
    start = start_variance(problem, np.mean([matrix for _, matrix in views], axis=0))
    scores = [evidence(transcript, c.relative, start).log_likelihood(matrix) for c, matrix in views]
    table = tables[int(np.argmax(scores))]
    steps = PASSES * len(table.columns)
    sweeps = int(np.clip(WORK / (steps * history[0].size ** 3), 2, SWEEPS))
    for sweep in range(sweeps):
        rows = table.rows()
        curvature, matrix = seen_from(rows)
        seen = evidence(transcript, curvature.relative, start)
        now = seen.log_likelihood(matrix)
        for j in np.tile(np.arange(len(table.columns)), PASSES):
            stride, old = rng.choice(STRIDES), table.parameters[j]
            new = np.sqrt(1.0 - stride**2) * old + stride * rng.normal(size=len(old))
            place, before = table.places[j], rows[:, table.places[j]].copy()
            rows[:, place] = table.column(j, new)
            there = slice(place.start * p, place.stop * p)
            other = matrix.copy()
            other[there] = mean_outer(rows[:, place], rows, curvature.of_rows)
            other[:, there] = other[there].T
            then = seen.log_likelihood(other)
            if np.log(rng.random()) < then - now:
                now, matrix, table.parameters[j] = then, other, new
            else:
                rows[:, place] = before
        if 2 * sweep >= sweeps:
            yield Guess(matrix, curvature.relative)
