"""``dpadmm privacy``: noise, ε per round, total ε or rounds from the others."""

from __future__ import annotations

from typing import Literal

from typer import Option

from dpadmm.accounting.calculator import PrivacyCalculation
from dpadmm.accounting.calibration import exact_round_noise_multiplier, paper_noise_multiplier, total_noise_multiplier
from dpadmm.cli.console import AsJson, show
from dpadmm.errors import StudyError
from dpadmm.parameters.checks import require_delta, require_epsilon, require_whole

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
    n_noise = (round_epsilon is not None) + (noise_multiplier is not None)
    if n_noise == 2:
        raise StudyError("give either --round-epsilon or --noise-multiplier, not both")
    if not n_noise and epsilon is None:
        raise StudyError("give --round-epsilon, --noise-multiplier, or a total --epsilon together with --rounds")
    if not n_noise and rounds is None:
        raise StudyError(
            "a total --epsilon needs --rounds (for the noise that reaches it), or --round-epsilon or "
            "--noise-multiplier (for the rounds it allows)"
        )
    if rounds is None and epsilon is None:
        raise StudyError("give --rounds for the total ε, or a total --epsilon for the rounds it allows")
    if delta is None:
        raise StudyError("--delta is missing: choose it well below 1 / number of rows, for example 1e-5")
    if calibration is not None and round_epsilon is None:
        raise StudyError("--calibration needs --round-epsilon")
    if (rows is None) != (lipschitz is None):
        raise StudyError("--rows and --lipschitz must be given together")
    if cross_check and rounds is None:
        raise StudyError("--cross-check needs --rounds")
    require_delta(delta)
    require_whole("rows_per_person", rows_per_person, least=1)
    if rows is not None and rows_per_person > rows:
        raise StudyError(f"rows_per_person must be at most --rows {rows}, not {rows_per_person}")
    if rounds is not None:
        require_whole("rounds", rounds, least=1)
    if epsilon is not None:
        require_epsilon("epsilon", epsilon)
    if noise_multiplier is not None:
        z, source = noise_multiplier, "given"
    elif round_epsilon is not None and calibration == "exact":
        z, source = exact_round_noise_multiplier(round_epsilon, delta), "exact per round"
    elif round_epsilon is not None:
        z, source = paper_noise_multiplier(round_epsilon, delta), "paper's √(2 ln(1.25/δ))/ε"
    else:
        assert epsilon is not None
        assert rounds is not None
        # A person with k rows needs k times the noise
        z, source = total_noise_multiplier(epsilon, delta, rounds) * rows_per_person, "exact for the total ε"
    calculation = PrivacyCalculation(z, source, delta, rounds, epsilon, rows_per_person, rows, lipschitz, cross_check)
    show(calculation.rendering(), as_json=as_json)
