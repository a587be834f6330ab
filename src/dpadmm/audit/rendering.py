"""Rendering of an audit: gates by game, and the verdict."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from dpadmm.rendering import Block, Cell, Column, Paragraph, Rendering, Style, Table

if TYPE_CHECKING:
    from dpadmm.audit.run import Audit

RESULTS: dict[bool | None, tuple[str, Style]] = {
    True: ("passed", "good"),
    False: ("FAILED", "bad"),
    None: ("inconclusive", "warning"),
}


def render_audit(audit: Audit, *, verdict_only: bool = False) -> Rendering:
    """Return the gates, those that did not pass, and the verdict."""
    body: list[Block] = [] if verdict_only else [_gates(audit, game) for game in (None, *audit.outcomes)]
    for gate in audit.gates:
        if not gate.passed:
            game = f"{gate.game}, " if gate.game else ""
            body.append(Paragraph(f"{game}{gate.name}: {gate.sentence}", RESULTS[gate.passed][1]))
    return Rendering(body=body, notes=[] if verdict_only else [_scope(audit)], verdict=_verdict(audit))


def _gates(audit: Audit, game: str | None) -> Table:
    columns = (
        Column("", f"gate ({game or 'all studies'})"),
        Column("", "measured", _number, align="right"),
        Column("", "from", _number, align="right"),
        Column("", "to", _number, align="right"),
        Column("", "result", wrap=False),
    )
    rows = [
        (gate.name, gate.measured, _limit(gate.low), _limit(gate.high), _result(gate.passed))
        for gate in audit.gates
        if gate.game == game
    ]
    return Table(columns, rows)


def _verdict(audit: Audit) -> Paragraph:
    plan, bound = audit.plan, audit.bound
    attack = (
        f"the attack proves ε ≥ {bound.epsilon:.3f} of the guaranteed {audit.epsilon:.3f} "
        f"({bound.epsilon / audit.epsilon:.1%}), at δ = {plan.delta:g} with {100 * plan.confidence:g}% confidence."
    )
    count = Counter(gate.passed for gate in audit.gates)
    match audit.outcome:
        case "passed":
            return Paragraph(f"PASSED: {attack}", "good")
        case "failed":
            return Paragraph(f"FAILED: {count[False]} of {count.total()} gates failed. Do not use this build.", "bad")
        case _:
            text = f"INCONCLUSIVE: {count[None]} of {count.total()} gates undecided after {audit.n_studies:,} trials,"
            return Paragraph(f"{text} and none failed. Increase --trials. So far, {attack}", "warning")


def _scope(audit: Audit) -> str:
    rate = audit.false_alarm
    rarely = f"about once in {int(float(f'{1.0 / rate:.1g}')):,} times" if rate > 0 else "never"
    return (
        f"{audit.n_studies} studies of {' and '.join(audit.outcomes)} (statistics: {', '.join(audit.statistics)}) "
        f"in {audit.seconds:.0f} s. Correct code fails such an audit {rarely}. "
        "The guarantee is for a person with one row, replace-one neighbours."
    )


def _limit(value: float | None) -> Cell:
    return Cell(text="") if value is None else Cell(value)


def _result(passed: bool | None) -> Cell:
    text, style = RESULTS[passed]
    return Cell(passed, text, style)


def _number(value: float) -> str:
    """Return integers, or four digits."""
    if not math.isfinite(value):
        return "not a number"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"
