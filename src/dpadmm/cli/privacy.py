"""``dpadmm privacy``: noise, ε per round, total ε or rounds from the others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Literal

from typer import Option

from dpadmm.accounting import calibration as noise
from dpadmm.accounting import gaussian as accounting
from dpadmm.accounting.events import Release
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.cli.console import AsJson, Row, echo, echo_json, show_table
from dpadmm.errors import StudyError
from dpadmm.parameters import checks

Calibration = Literal["paper", "exact"]


def privacy(
    round_epsilon: float | None = Option(None, help="ε per round."),
    epsilon: float | None = Option(None, help="Total ε: a target or a budget."),
    noise_multiplier: float | None = Option(
        None, "--noise-multiplier", "-z", help="Noise standard deviation / sensitivity."
    ),
    delta: float | None = Option(None, help="δ, well below 1 / number of rows."),
    rounds: int | None = Option(None, "--rounds", "-t", help="Number of rounds."),
    calibration: Calibration | None = Option(
        None, help="How --round-epsilon is converted to noise.", show_default="paper"
    ),
    rows: int | None = Option(None, help="Rows of an agent, to show the noise itself (with --lipschitz)."),
    lipschitz: float | None = Option(None, help="c1, the bound of a row's gradient norm (with --rows)."),
    rows_per_person: int = Option(1, help="Maximum number of rows per person at an agent."),
    cross_check: bool = Option(False, "--cross-check", help="Also use the RDP and PLD accountants of dp_accounting."),
    as_json: AsJson = False,
) -> None:
    """Compute any one of noise, ε or rounds from the rest.

    Noise for a target: --epsilon with --rounds. Total ε: --round-epsilon or -z, with --rounds. Rounds
    within a budget: --epsilon with --round-epsilon or -z. --delta is always required.
    """
    answer = solve(SimpleNamespace(**locals()))
    if as_json:  # which has no infinity
        echo_json({name: "inf" if value == math.inf else value for name, value in answer.items()})
    else:
        show_table(("", "value", "how"), _rows(answer), left=(0, 2))
        echo(in_words(answer))


def solve(asked: Any) -> dict[str, Any]:
    """All numbers that follow from the options, by their names; this is the JSON output."""
    _check(asked)
    delta, rounds, k = asked.delta, asked.rounds, asked.rows_per_person
    z, found_by = _noise_multiplier(asked)
    answer: dict[str, Any] = {
        "delta": delta,
        "noise_multiplier": z,
        "noise_multiplier_from": found_by,
        "round_epsilon_paper": noise.round_epsilon_from_noise(z, delta),
        "round_epsilon_exact": accounting.exact_epsilon(accounting.gaussian_mu([Release(z)]), delta),
        "rounds": rounds,
        "rows_per_person": k,
    }
    if rounds is not None:
        releases = [Release(z, rounds)]
        mu = accounting.gaussian_mu(releases)
        answer |= {
            "mu": mu,
            "epsilon_paper": accounting.paper_epsilon(z, rounds, delta),
            "epsilon_exact": accounting.exact_epsilon(mu, delta),
            "person_epsilon_paper": accounting.paper_epsilon(z / k, rounds, delta),
            "person_epsilon_exact": accounting.exact_epsilon(accounting.group_mu(mu, k), delta),
        }
        if asked.cross_check:
            answer["epsilon_rdp"] = accounting.rdp_epsilon(releases, delta)
            answer["epsilon_pld"] = accounting.pld_epsilon(releases, delta)
    if asked.epsilon is not None:
        answer["epsilon_budget"] = asked.epsilon
        for by in ("paper", "exact"):
            # With k rows per person μ grows k-fold, which is the same as k times less noise
            affordable = accounting.affordable_rounds(z / k, asked.epsilon, delta, accountant=by)
            answer[f"affordable_rounds_{by}"] = affordable
            if rounds is not None:
                answer[f"fits_{by}"] = answer[f"person_epsilon_{by}"] <= asked.epsilon
    if asked.rows is not None:
        sensitivity = mean_sensitivity(asked.lipschitz, asked.rows)
        answer |= {"rows": asked.rows, "lipschitz": asked.lipschitz}
        answer |= {"sensitivity": sensitivity, "noise_std": z * sensitivity}
    return answer


def _check(asked: Any) -> None:
    """Refuse options that are missing or do not go together."""
    noises = (asked.round_epsilon is not None) + (asked.noise_multiplier is not None)
    total, rounds = asked.epsilon is not None, asked.rounds is not None
    for wrong, sentence in (
        (noises == 2, "give either --round-epsilon or --noise-multiplier, not both"),
        (
            not noises and not total,
            "give --round-epsilon, --noise-multiplier, or a total --epsilon together with --rounds",
        ),
        (
            not noises and not rounds,
            "a total --epsilon needs --rounds (for the noise that reaches it), or --round-epsilon or "
            "--noise-multiplier (for the rounds it affords)",
        ),
        (not rounds and not total, "give --rounds for the total ε, or a total --epsilon for the rounds it affords"),
        (asked.delta is None, "--delta is missing: choose it well below 1 / number of rows, for example 1e-5"),
        (asked.calibration is not None and asked.round_epsilon is None, "--calibration needs --round-epsilon"),
        ((asked.rows is None) != (asked.lipschitz is None), "--rows and --lipschitz must be given together"),
        (asked.cross_check and not rounds, "--cross-check needs --rounds"),
    ):
        if wrong:
            raise StudyError(sentence)
    checks.require_delta(asked.delta)
    checks.require_whole("rows_per_person", asked.rows_per_person, least=1)
    if asked.rows is not None and asked.rows_per_person > asked.rows:
        raise StudyError(f"rows_per_person must be at most --rows {asked.rows}, not {asked.rows_per_person}")
    if rounds:
        checks.require_whole("rounds", asked.rounds, least=1)
    if total:
        checks.require_epsilon("epsilon", asked.epsilon)


def _noise_multiplier(asked: Any) -> tuple[float, str]:
    """z and its source."""
    if asked.noise_multiplier is not None:
        return asked.noise_multiplier, "given"
    if asked.round_epsilon is not None:
        if asked.calibration == "exact":
            return noise.exact_round_noise_multiplier(asked.round_epsilon, asked.delta), "exact per round"
        return noise.paper_noise_multiplier(asked.round_epsilon, asked.delta), "paper's √(2 ln(1.25/δ))/ε"
    # A person with k rows must be protected too: k times the noise
    z = noise.total_noise_multiplier(asked.epsilon, asked.delta, asked.rounds) * asked.rows_per_person
    return z, "exact for the total ε"


def _rows(answer: dict[str, Any]) -> list[Row]:
    """All numbers of an answer with their sources."""

    def row(words: str, name: str, how: str = "") -> list[Row]:
        return [(words, _number(answer[name]), how)] if name in answer else []

    rows = row("noise multiplier z", "noise_multiplier", answer["noise_multiplier_from"])
    rows += [("δ", f"{answer['delta']:g}", "")]
    if "noise_std" in answer:
        source = f"z·2·c1/m, c1 = {answer['lipschitz']:g}, m = {answer['rows']}"
        rows += [("noise per coordinate (std)", f"{answer['noise_std']:.4g}", source)]
    proven = "√(2 ln(1.25/δ))/z" if answer["round_epsilon_paper"] <= 1.0 else "not proven above 1"
    rows += row("ε of one round, paper", "round_epsilon_paper", proven)
    rows += row("ε of one round, exact", "round_epsilon_exact")
    if answer["rounds"] is not None:
        rows += [(), ("rounds", str(answer["rounds"]), "")]
        rows += row("total ε, paper's moments bound", "epsilon_paper")
        rows += row("total ε, exact", "epsilon_exact", f"μ = {_number(answer['mu'])}")
        rows += row("total ε, RDP cross-check", "epsilon_rdp", "dp_accounting")
        rows += row("total ε, PLD cross-check", "epsilon_pld", "dp_accounting")
        if answer["rows_per_person"] > 1:
            label = f"person with {answer['rows_per_person']} rows"
            rows += row(f"{label}, paper's", "person_epsilon_paper", "total ε")
            rows += row(f"{label}, exact", "person_epsilon_exact", "total ε")
    if "epsilon_budget" in answer:
        rows += [(), *row("budget ε", "epsilon_budget")]
        for name, label in (("paper", "paper's bound"), ("exact", "exact")):
            fits = answer.get(f"fits_{name}")
            verdict = "" if fits is None else f"{answer['rounds']} rounds {'fit' if fits else 'do not fit'}"
            rows += [(f"rounds affordable, {label}", str(answer[f"affordable_rounds_{name}"]), verdict)]
    return rows


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
