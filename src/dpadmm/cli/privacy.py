"""``dpadmm privacy``: noise, ε per round, total ε or rounds from the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from dpadmm._base.errors import StudyError
from dpadmm.cli.screen import AsJson, echo_json
from dpadmm.cli.screen import table as new_table
from dpadmm.privacy import accounting, checks
from dpadmm.privacy import calibration as noise
from dpadmm.privacy.releases import Release
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity

GRID_EPSILONS = (0.01, 0.05, 0.1, 0.2)
GRID_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6)
GRID_ROUNDS = 100

Calibration = Literal["paper", "exact"]


@dataclass(frozen=True)
class Question:
    """The options of the command."""

    round_epsilon: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    rounds: int | None = None
    calibration: Calibration | None = None
    rows: int | None = None
    lipschitz: float | None = None
    rows_per_person: int = 1
    cross_check: bool = False


def privacy(
    round_epsilon: Annotated[float | None, typer.Option(help="ε per round.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Total ε: a target or a budget.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", "-z", help="Noise standard deviation / sensitivity.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ, well below 1 / number of rows.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", "-t", help="Number of rounds.")] = None,
    calibration: Annotated[
        Calibration | None, typer.Option(help="How --round-epsilon is converted to noise.", show_default="paper")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of an agent, to show the noise itself (with --lipschitz).")
    ] = None,
    lipschitz: Annotated[
        float | None, typer.Option(help="c1, the bound of a row's gradient norm (with --rows).")
    ] = None,
    rows_per_person: Annotated[int, typer.Option(help="Maximum number of rows per person at an agent.")] = 1,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="Also use the RDP and PLD accountants of dp_accounting.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Compare the paper's bound with the exact total on a grid.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Privacy calculator: compute noise, ε per round, total ε or rounds from the others.

    Noise for a target: --epsilon with --rounds. Total ε: --round-epsilon or -z, with --rounds. Rounds
    within a budget: --epsilon with --round-epsilon or -z. --delta is always required.
    """
    options = {name: value for name, value in locals().items() if name not in ("table", "as_json")}
    question = Question(**options)
    answer = reference_grid(question) if table else solve(question)
    if as_json:
        echo_json(_plain(answer))
        return
    console = Console()
    console.print(grid_table(answer) if table else answer_table(answer))
    if not table:
        console.print(in_words(answer), highlight=False)


def solve(question: Question) -> dict[str, Any]:
    """All numbers that follow from the question; this is the JSON output."""
    delta = _checked(question)
    z, found_by = _noise_multiplier(question, delta)
    answer: dict[str, Any] = {
        "delta": delta,
        "noise_multiplier": z,
        "noise_multiplier_from": found_by,
        "round_epsilon_paper": noise.round_epsilon_from_noise(z, delta),
        "round_epsilon_exact": accounting.exact_epsilon(accounting.gaussian_mu([Release(z)]), delta),
        "rounds": question.rounds,
        "rows_per_person": question.rows_per_person,
    }
    if question.rounds is not None:
        mu, k = accounting.gaussian_mu([Release(z, question.rounds)]), question.rows_per_person
        answer |= {
            "mu": mu,
            "epsilon_paper": accounting.paper_epsilon(z, question.rounds, delta),
            "epsilon_exact": accounting.exact_epsilon(mu, delta),
            "person_epsilon_paper": accounting.paper_epsilon(z / k, question.rounds, delta),
            "person_epsilon_exact": accounting.exact_epsilon(accounting.group_mu(mu, k), delta),
        }
        if question.cross_check:
            answer["epsilon_rdp"] = accounting.rdp_epsilon([Release(z, question.rounds)], delta)
            answer["epsilon_pld"] = accounting.pld_epsilon([Release(z, question.rounds)], delta)
    if question.epsilon is not None:
        answer["epsilon_budget"] = question.epsilon
        # With k rows per person μ grows k-fold, which is the same as k times less noise
        person_z = z / question.rows_per_person
        answer["affordable_rounds_paper"] = accounting.affordable_rounds(
            person_z, question.epsilon, delta, accountant="paper"
        )
        answer["affordable_rounds_exact"] = accounting.affordable_rounds(person_z, question.epsilon, delta)
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


def _checked(question: Question) -> float:
    """Check the options; returns δ."""
    asked = question.round_epsilon is not None, question.noise_multiplier is not None
    if all(asked):
        raise StudyError("give either --round-epsilon or --noise-multiplier, not both")
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
        raise StudyError("--calibration needs --round-epsilon")
    if (question.rows is None) != (question.lipschitz is None):
        raise StudyError("--rows and --lipschitz must be given together")
    if question.cross_check and question.rounds is None:
        raise StudyError("--cross-check needs --rounds")
    checks.require_delta(question.delta)
    checks.require_whole("rows_per_person", question.rows_per_person, least=1)
    if question.rows is not None and question.rows_per_person > question.rows:
        raise StudyError(f"rows_per_person must be at most --rows {question.rows}, not {question.rows_per_person}")
    if question.rounds is not None:
        checks.require_whole("rounds", question.rounds, least=1)
    if question.epsilon is not None:
        checks.require_epsilon("epsilon", question.epsilon)
    return question.delta


def _noise_multiplier(question: Question, delta: float) -> tuple[float, str]:
    """z and its source."""
    if question.noise_multiplier is not None:
        return question.noise_multiplier, "given"
    if question.round_epsilon is not None:
        if question.calibration == "exact":
            return noise.exact_round_noise_multiplier(question.round_epsilon, delta), "exact per round"
        return noise.paper_noise_multiplier(question.round_epsilon, delta), "paper's √(2 ln(1.25/δ))/ε"
    assert question.epsilon is not None
    assert question.rounds is not None
    # A person with k rows must be protected too: k times the noise
    z = noise.total_noise_multiplier(question.epsilon, delta, question.rounds) * question.rows_per_person
    return z, "exact for the total ε"


def reference_grid(question: Question) -> dict[str, Any]:
    """The paper's bound and the exact total for a grid of ε per round and δ."""
    if question != Question(rounds=question.rounds):
        raise StudyError("--table can only be combined with --rounds and --json")
    rounds = GRID_ROUNDS if question.rounds is None else question.rounds
    checks.require_whole("rounds", rounds, least=1)
    cells = []
    for round_epsilon in GRID_EPSILONS:
        for delta in GRID_DELTAS:
            z = noise.paper_noise_multiplier(round_epsilon, delta)
            cells.append(
                {
                    "round_epsilon": round_epsilon,
                    "delta": delta,
                    "noise_multiplier": z,
                    "epsilon_paper": accounting.paper_epsilon(z, rounds, delta),
                    "epsilon_exact": accounting.exact_epsilon(accounting.gaussian_mu([Release(z, rounds)]), delta),
                }
            )
    return {"rounds": rounds, "cells": cells}


def _plain(value: Any) -> Any:
    """JSON has no infinity: it becomes the string "inf"."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def answer_table(answer: dict[str, Any]) -> Table:
    """All numbers of an answer with their sources."""
    table = new_table("", "value", "how")
    table.columns[2].justify = "left"

    def add(words: str, name: str, how: str = "") -> None:
        table.add_row(words, _number(answer[name]), how)

    add("noise multiplier z", "noise_multiplier", answer["noise_multiplier_from"])
    table.add_row("δ", f"{answer['delta']:g}", "")
    if "noise_std" in answer:
        source = f"z·2·c1/m, c1 = {answer['lipschitz']:g}, m = {answer['rows']}"
        table.add_row("noise per coordinate (std)", f"{answer['noise_std']:.4g}", source)
    proven = "√(2 ln(1.25/δ))/z" if answer["round_epsilon_paper"] <= 1.0 else "not proven above 1"
    add("ε of one round, paper", "round_epsilon_paper", proven)
    add("ε of one round, exact", "round_epsilon_exact")
    if answer["rounds"] is not None:
        table.add_section()
        table.add_row("rounds", str(answer["rounds"]), "")
        add("total ε, paper's moments bound", "epsilon_paper")
        add("total ε, exact", "epsilon_exact", f"μ = {_number(answer['mu'])}")
        if "epsilon_rdp" in answer:
            add("total ε, RDP cross-check", "epsilon_rdp", "dp_accounting")
            add("total ε, PLD cross-check", "epsilon_pld", "dp_accounting")
        if answer["rows_per_person"] > 1:
            label = f"person with {answer['rows_per_person']} rows"
            add(f"{label}, paper's", "person_epsilon_paper", "total ε")
            add(f"{label}, exact", "person_epsilon_exact", "total ε")
    if "epsilon_budget" in answer:
        table.add_section()
        add("budget ε", "epsilon_budget")
        for name, label in (("paper", "paper's bound"), ("exact", "exact")):
            fits = answer.get(f"fits_{name}")
            verdict = "" if fits is None else f"{answer['rounds']} rounds {'fit' if fits else 'do not fit'}"
            table.add_row(f"rounds affordable, {label}", str(answer[f"affordable_rounds_{name}"]), verdict)
    return table


def in_words(answer: dict[str, Any]) -> str:
    """The guarantee in one sentence, with ε rounded up."""
    if answer["noise_multiplier"] == 0.0:
        return "Without noise there is no privacy guarantee."
    if answer["rounds"] is not None:
        rounds, epsilon = answer["rounds"], answer["person_epsilon_exact"]
    else:
        rounds, epsilon = answer["affordable_rounds_exact"], answer["epsilon_budget"]
    if rounds == 0:
        return "This budget does not allow a single round: use more noise or a larger ε."
    k = answer["rows_per_person"]
    who = "each person with one row" if k == 1 else f"each person with at most {k} rows at an agent"
    return (
        f"Guarantee: ε at most {_rounded_up(epsilon)} at δ = {answer['delta']:g} for {who}, "
        f"replace-one neighbours, against everyone who sees all messages of {rounds} "
        f"round{'s' if rounds != 1 else ''}."
    )


def grid_table(grid: dict[str, Any]) -> Table:
    """The reference grid, with a section for every ε per round."""
    title = f"Total ε after {grid['rounds']} rounds, z = √(2 ln(1.25/δ))/ε"
    headings = ("ε per round", "δ", "z", "paper's bound", "exact", "saved")
    table = new_table(*headings, left=0, title=title, pad_edge=True)
    for cell in grid["cells"]:
        paper, exact = cell["epsilon_paper"], cell["epsilon_exact"]
        table.add_row(
            f"{cell['round_epsilon']:g}",
            f"{cell['delta']:.0e}".replace("e-0", "e-"),
            f"{cell['noise_multiplier']:.2f}",
            _number(paper),
            _number(exact),
            f"{1.0 - exact / paper:.0%}",
            end_section=cell["delta"] == grid["cells"][-1]["delta"],
        )
    return table


def _number(value: float) -> str:
    """Four decimals, or four significant digits for very small and large numbers."""
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0.0 or 1e-3 <= abs(value) < 1e7 else f"{value:.4g}"


def _rounded_up(value: float) -> str:
    if math.isinf(value) or value == 0.0:
        return _number(value)
    places = max(4, 3 - math.floor(math.log10(value)))
    # What lies within 1e-9 of a printed digit is rounding, not privacy
    return f"{math.ceil(value * 10.0**places * (1.0 - 1e-9)) / 10.0**places:.{places}f}"
