"""``dpadmm privacy``: any of noise, ε per round, total ε and rounds from the others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from dpadmm.cli.privacy_tables import answer_table, grid_table, in_words, show
from dpadmm.errors import StudyError
from dpadmm.privacy.accounting import (
    Release,
    affordable_rounds,
    exact_epsilon,
    gaussian_mu,
    group_mu,
    paper_epsilon,
    pld_epsilon,
    rdp_epsilon,
    require_delta,
    require_epsilon,
    require_whole,
)
from dpadmm.privacy.calibration import (
    exact_round_noise_multiplier,
    paper_noise_multiplier,
    round_epsilon_from_noise,
    total_noise_multiplier,
)
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity

GRID_EPSILONS = (0.01, 0.05, 0.1, 0.2)
GRID_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6)
GRID_ROUNDS = 100


class Calibration(StrEnum):
    """How an ε per round becomes a noise multiplier."""

    PAPER = "paper"
    EXACT = "exact"


@dataclass(frozen=True)
class Question:
    """What the user gave; None where they gave nothing."""

    round_epsilon: float | None
    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    rounds: int | None
    calibration: Calibration | None
    rows: int | None
    lipschitz: float | None
    rows_per_person: int
    cross_check: bool


def privacy(
    round_epsilon: Annotated[
        float | None, typer.Option("--round-epsilon", help="ε of one round.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Total ε: a target or a budget.", show_default=False)
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier", "-z", help="Noise standard deviation / sensitivity.", show_default=False
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="δ, far below 1 / number of rows.", show_default=False)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", "-t", help="Number of rounds.", show_default=False)
    ] = None,
    calibration: Annotated[
        Calibration | None,
        typer.Option("--calibration", help="How --round-epsilon becomes noise; paper if not given."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", help="Rows of an agent: also show the noise itself.", show_default=False),
    ] = None,
    lipschitz: Annotated[
        float | None,
        typer.Option(
            "--lipschitz", help="c1, bound of a row's gradient norm (with --rows).", show_default=False
        ),
    ] = None,
    rows_per_person: Annotated[
        int, typer.Option("--rows-per-person", help="Rows that one person may have at an agent.")
    ] = 1,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="Also ask dp_accounting's RDP and PLD accountants.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="The paper's bound against the exact total on a grid.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")] = False,
) -> None:
    """Privacy calculator: give some of noise, ε per round, total ε and rounds; see the others.

    Noise for a target: --epsilon with --rounds. Total of a plan: --round-epsilon or -z, with --rounds.
    Rounds under a budget: --epsilon with --round-epsilon or -z. Every question needs --delta.
    """
    question = Question(
        round_epsilon=round_epsilon,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        rounds=rounds,
        calibration=calibration,
        rows=rows,
        lipschitz=lipschitz,
        rows_per_person=rows_per_person,
        cross_check=cross_check,
    )
    if table:
        cells = reference_grid(question)
        show(cells, as_json, grid_table(cells), None)
    else:
        answer = solve(question)
        show(answer, as_json, answer_table(answer), in_words(answer))


def solve(question: Question) -> dict[str, Any]:
    """All numbers that follow from the question, by name; the JSON output is this."""
    delta = _checked(question)
    z, found_by = _noise_multiplier(question, delta)
    answer: dict[str, Any] = {
        "delta": delta,
        "noise_multiplier": z,
        "noise_multiplier_from": found_by,
        "round_epsilon_paper": round_epsilon_from_noise(z, delta),
        "round_epsilon_exact": exact_epsilon(gaussian_mu([Release(z)]), delta),
        "rounds": question.rounds,
        "rows_per_person": question.rows_per_person,
    }
    if question.rounds is not None:
        answer |= _totals(question, z, question.rounds, delta)
    if question.epsilon is not None:
        answer["epsilon_budget"] = question.epsilon
        # With k rows per person μ grows k-fold, which is the same as k times less noise
        person_z = z / question.rows_per_person
        answer["affordable_rounds_paper"] = affordable_rounds(
            person_z, question.epsilon, delta, accountant="paper"
        )
        answer["affordable_rounds_exact"] = affordable_rounds(person_z, question.epsilon, delta)
        if question.rounds is not None:
            answer["fits_paper"] = answer["person_epsilon_paper"] <= question.epsilon
            answer["fits_exact"] = answer["person_epsilon_exact"] <= question.epsilon
    if question.rows is not None and question.lipschitz is not None:
        sensitivity = mean_gradient_sensitivity(question.lipschitz, question.rows)
        answer |= {
            "rows": question.rows,
            "lipschitz": question.lipschitz,
            "sensitivity": sensitivity,
            "noise_std": z * sensitivity,
        }
    return answer


def _totals(question: Question, z: float, rounds: int, delta: float) -> dict[str, Any]:
    mu = gaussian_mu([Release(z, rounds)])
    k = question.rows_per_person
    totals: dict[str, Any] = {
        "mu": mu,
        "epsilon_paper": paper_epsilon(z, rounds, delta),
        "epsilon_exact": exact_epsilon(mu, delta),
        "person_epsilon_paper": paper_epsilon(z / k, rounds, delta),
        "person_epsilon_exact": exact_epsilon(group_mu(mu, k), delta),
    }
    if question.cross_check:
        totals["epsilon_rdp"] = rdp_epsilon([Release(z, rounds)], delta)
        totals["epsilon_pld"] = pld_epsilon([Release(z, rounds)], delta)
    return totals


def _checked(question: Question) -> float:
    """Refuse what is missing or contradictory; return δ."""
    asked = question.round_epsilon is not None, question.noise_multiplier is not None
    if all(asked):
        raise StudyError(
            "give either --round-epsilon or --noise-multiplier, not both: one follows from the other"
        )
    if not any(asked) and question.epsilon is None:
        raise StudyError(
            "give --round-epsilon, --noise-multiplier, or a total --epsilon together with --rounds "
            "(or --table for the reference grid)"
        )
    if not any(asked) and question.rounds is None:
        raise StudyError(
            "a total --epsilon needs --rounds (for the noise that reaches it), or --round-epsilon or "
            "--noise-multiplier (for the rounds it affords)"
        )
    if any(asked) and question.rounds is None and question.epsilon is None:
        raise StudyError("give --rounds for the total ε, or a total --epsilon for the rounds it affords")
    if question.delta is None:
        raise StudyError("--delta is missing: choose it well below 1 / number of rows, for example 1e-5")
    if question.calibration is not None and question.round_epsilon is None:
        raise StudyError("--calibration says how --round-epsilon becomes noise: give --round-epsilon with it")
    if (question.rows is None) != (question.lipschitz is None):
        raise StudyError("--rows and --lipschitz belong together: give both to see the noise itself")
    if question.cross_check and question.rounds is None:
        raise StudyError("--cross-check compares totals: give --rounds with it")
    require_delta(question.delta)
    require_whole("rows_per_person", question.rows_per_person, least=1)
    if question.rows is not None and question.rows_per_person > question.rows:
        raise StudyError(
            f"rows_per_person must be at most --rows {question.rows}, not {question.rows_per_person}"
        )
    if question.rounds is not None:
        require_whole("rounds", question.rounds, least=1)
    if question.epsilon is not None:
        require_epsilon("epsilon", question.epsilon)
    return question.delta


def _noise_multiplier(question: Question, delta: float) -> tuple[float, str]:
    """z, and where it comes from."""
    if question.noise_multiplier is not None:
        return question.noise_multiplier, "given"
    if question.round_epsilon is not None:
        if question.calibration is Calibration.EXACT:
            return exact_round_noise_multiplier(question.round_epsilon, delta), "exact per round"
        return paper_noise_multiplier(question.round_epsilon, delta), "paper's √(2 ln(1.25/δ))/ε"
    assert question.epsilon is not None
    assert question.rounds is not None
    # A person with k rows must be protected too: k times the noise
    z = total_noise_multiplier(question.epsilon, delta, question.rounds) * question.rows_per_person
    return z, "exact for the total ε"


def reference_grid(question: Question) -> dict[str, Any]:
    """The paper's bound and the exact total for ε per round × δ, as in the design's reference table."""
    given = (question.round_epsilon, question.epsilon, question.noise_multiplier, question.delta)
    extra = (question.calibration, question.rows, question.lipschitz)
    if (
        any(value is not None for value in given + extra)
        or question.cross_check
        or question.rows_per_person != 1
    ):
        raise StudyError(
            "--table has its own grid of ε per round and δ: give only --rounds and --json with it"
        )
    rounds = GRID_ROUNDS if question.rounds is None else question.rounds
    require_whole("rounds", rounds, least=1)
    cells = []
    for round_epsilon in GRID_EPSILONS:
        for delta in GRID_DELTAS:
            z = paper_noise_multiplier(round_epsilon, delta)
            cells.append(
                {
                    "round_epsilon": round_epsilon,
                    "delta": delta,
                    "noise_multiplier": z,
                    "epsilon_paper": paper_epsilon(z, rounds, delta),
                    "epsilon_exact": exact_epsilon(gaussian_mu([Release(z, rounds)]), delta),
                }
            )
    return {"rounds": rounds, "cells": cells}
