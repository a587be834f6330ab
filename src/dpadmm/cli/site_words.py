"""A site in words: its rows, its limits, its ledger, and what its owner may have overlooked."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpadmm.cli.costs import amount, epsilon_left, epsilon_of, left_of
from dpadmm.privacy.book import Book
from dpadmm.privacy.policy import Policy
from dpadmm.site import Site
from dpadmm.site_promises import broken_promises

if TYPE_CHECKING:
    from dpadmm.privacy.unit import Persons


def rows_in_words(site: Site, persons: Persons) -> list[str]:
    """Whose rows there are, and which are used."""
    k = site.policy.unit.rows
    rows = "one row" if k == 1 else f"{k} rows"
    if persons.n_persons is None:
        return [f"{persons.n_rows:,} rows, all used: you vouch that nobody has more than {rows}."]
    said = f"{persons.n_rows:,} rows of {persons.n_persons:,} persons; {persons.n_used:,} rows are used."
    if persons.n_used == persons.n_rows:
        return [said, f"Nobody has more than {rows}."]
    reasons = [
        (persons.n_above, f"{_count(persons.n_above, 'person has', 'persons have')} more than {rows}"),
        (persons.n_without_id, f"{_count(persons.n_without_id, 'row has', 'rows have')} no id"),
        (
            persons.n_ambiguous,
            f"{_count(persons.n_ambiguous, 'id is', 'ids are')} written in different ways (7 and 007, say)",
        ),
    ]
    why = "; ".join(text for count, text in reasons if count)
    return [said, f"The others count as rows of zeros: {why}."]


def _count(n: int, one: str, several: str) -> str:
    return f"{n:,} {one if n == 1 else several}"


def limits_in_words(policy: Policy) -> list[str]:
    """What the owner allows."""
    k = policy.unit.rows
    charged = "one row" if k == 1 else f"{k} rows"
    return [
        f"Limit: ε {policy.epsilon:g} at δ = {policy.delta:g} for each person ({charged}), over all studies.",
        f"Allowed: {', '.join(sorted(policy.methods))}; losses {', '.join(sorted(policy.losses))}; at most "
        f"{policy.max_rounds:,} rounds in a study; no study with fewer than {policy.min_rows:,} rows.",
        f"Measuring models on your rows: {'allowed, for you' if policy.local_metrics else 'not allowed'}.",
    ]


def ledger_in_words(policy: Policy, book: Book | None) -> str:
    """What is spent, reserved and left."""
    if book is None:
        return "Not begun."
    count, n_open = len(book.accounts), sum(not account.closed for account in book.accounts.values())
    studies = "1 study" if count == 1 else f"{count} studies"
    return (
        f"{studies}, {n_open} of them open; ε {epsilon_of(book.spent, policy)} spent, "
        f"{epsilon_of(book.promised, policy)} spent or reserved, {epsilon_left(book.promised, policy)} left."
    )


def doubts(site: Site, persons: Persons, book: Book | None) -> list[str]:
    """What an owner may have overlooked."""
    from dpadmm.data.lines import swallowed

    told, used = swallowed(site.table, persons.n_rows), persons.n_used
    if used < site.policy.min_rows:
        told.append(f"{used:,} rows that are used are fewer than your min_rows = {site.policy.min_rows:,}.")
    if site.policy.delta * used >= 1.0:
        told.append(f"δ = {site.policy.delta:g} should be well below 1 / rows = {1 / used:.2g}.")
    return told + (broken_promises(site.policy, book) if book else [])


def checked(site: Site, persons: Persons, book: Book | None) -> dict[str, Any]:
    """All of it, for programs."""
    policy = site.policy
    return {
        "table": str(site.table),
        "rows": persons.n_rows,
        "rows_used": persons.n_used,
        "persons": persons.n_persons,
        "persons_with_more": persons.n_above,
        "ids_written_differently": persons.n_ambiguous,
        "rows_without_id": persons.n_without_id,
        "limits": {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "methods": sorted(policy.methods),
            "losses": sorted(policy.losses),
            "max_rounds": policy.max_rounds,
            "min_rows": policy.min_rows,
            "rows_per_person": policy.unit.rows,
            "local_metrics": policy.local_metrics,
        },
        "ledger": str(site.ledger),
        "spent": None if book is None else amount(book.spent, policy),
        "promised": None if book is None else amount(book.promised, policy),
        "left": amount(left_of(policy, book.promised if book else Fraction(0)), policy),
        "notes": [*site.worries(), *doubts(site, persons, book)],
    }
