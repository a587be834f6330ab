"""What a study would cost an owner: asked, allowed, left."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rich.table import Table

from dpadmm.cli.ledger import left_in
from dpadmm.cli.rounding import rounded_down, rounded_up
from dpadmm.cli.screen import table
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.book import Book
from dpadmm.privacy.policy import Policy
from dpadmm.study import Study


def limits(study: Study, policy: Policy, book: Book, n_rows: int | None) -> list[dict[str, Any]]:
    """Every limit: what is asked, allowed and left; the study's own reservation is not counted against it."""
    terms, known = study.terms, book.accounts.get(study.hash)
    cost = Fraction(terms.n_rounds * policy.price(terms))
    promised = book.promised
    if known is not None and not known.closed:
        promised -= Fraction(known.reservation.mu_squared)
    left = left_of(policy, promised)
    asked, allowed, rest = (amount(each, policy) for each in (cost, Fraction(policy.cap), left))

    def line(limit: str, asked: Any, allowed: Any, left: Any, holds: bool) -> dict[str, Any]:
        return {"limit": limit, "asked": asked, "allowed": allowed, "left": left, "holds": holds}

    lines = [
        line("method", terms.method, sorted(policy.methods), None, terms.method in policy.methods),
        line("loss", terms.loss, sorted(policy.losses), None, terms.loss in policy.losses),
        line("rounds", terms.n_rounds, policy.max_rounds, None, terms.n_rounds <= policy.max_rounds),
    ]
    if n_rows is not None:
        lines.append(line("rows", n_rows, policy.min_rows, None, n_rows >= policy.min_rows))
    fits = float(promised + cost) <= policy.cap
    lines += [line(name, asked[name], allowed[name], rest[name], fits) for name in ("epsilon", "mu_squared")]
    return lines


def left_of(policy: Policy, promised: Fraction) -> Fraction:
    """Σμ² that nobody was promised."""
    return left_in(Fraction(policy.cap), promised)


def amount(mu_squared: Fraction, policy: Policy) -> dict[str, float]:
    """Σμ², and the ε that it is at the owner's δ."""
    return {"mu_squared": float(mu_squared), "epsilon": exact_epsilon(float(mu_squared) ** 0.5, policy.delta)}


def epsilon_of(mu_squared: Fraction, policy: Policy) -> str:
    """ε at the owner's δ, four digits, rounded up."""
    return rounded_up(amount(mu_squared, policy)["epsilon"])


def epsilon_left(promised: Fraction, policy: Policy) -> str:
    """What is left, rounded down."""
    return rounded_down(amount(left_of(policy, promised), policy)["epsilon"])


def limits_table(policy: Policy, limits: list[dict[str, Any]]) -> Table:
    """The limits as a table."""
    names = {
        "method": "method",
        "loss": "loss",
        "rounds": "rounds",
        "rows": "rows here",
        "epsilon": f"total ε at δ = {policy.delta:g}",
        "mu_squared": "total Σμ²",
    }
    out = table("", "asked", "allowed", "left", "fits")
    for column in out.columns:
        column.overflow = "fold"
    for line in limits:
        out.add_row(
            names[line["limit"]],
            *(_cell(line["limit"], name, line[name]) for name in ("asked", "allowed", "left")),
            "yes" if line["holds"] else "no",
        )
    return out


def _cell(limit: str, column: str, value: Any) -> str:
    if value is None:
        return ""
    if limit == "epsilon":
        return rounded_down(value) if column == "left" else rounded_up(value)
    if limit == "mu_squared":
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(value)
    at_least = "at least " if (limit, column) == ("rows", "allowed") else ""
    return f"{at_least}{value:,}" if isinstance(value, int) else str(value)
