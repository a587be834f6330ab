"""Promises to enrolled studies that an owner's limits no longer keep: they were lowered since."""

from __future__ import annotations

from collections.abc import Iterator

from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.book import Account, Book
from dpadmm.privacy.policy import Policy


def broken_promises(policy: Policy, book: Book) -> list[str]:
    """A sentence for every enrolled study that cannot end as agreed on, and why: for the owner's eyes."""
    still_open = {hash: each for hash, each in book.accounts.items() if not each.closed and _goes_on(each)}
    told = [
        f"{_name(hash, account)} is enrolled and will be refused: {why}; raise the limit, or leave the study"
        for hash, account in still_open.items()
        for why in _reasons(policy, account)
    ]
    if still_open and float(book.promised) > policy.cap:
        asked, cap, spent = (
            exact_epsilon(each**0.5, policy.delta) for each in (book.promised, policy.cap, book.spent)
        )
        names = ", ".join(_name(*pair) for pair in still_open.items())
        told.append(
            f"your limit, ε {cap:.4f} at δ = {policy.delta:g}, is below what was promised, ε {asked:.4f} "
            f"({spent:.4f} of it released): not every enrolled study can end ({names}); raise the limit, or "
            "leave a study"
        )
    return told


def _reasons(policy: Policy, account: Account) -> Iterator[str]:
    about = account.about
    for kind, allowed in (("method", policy.methods), ("loss", policy.losses)):
        if about.get(kind, next(iter(allowed))) not in allowed:
            yield f"the {kind} {about[kind]} is no longer allowed"
    if about.get("n_rounds", 0) > policy.max_rounds:
        yield f"it has {about['n_rounds']:,} rounds, and your max_rounds is {policy.max_rounds:,}"
    if about.get("n_rows", policy.min_rows) < policy.min_rows:
        yield f"it has {about['n_rows']:,} rows here, and your min_rows is {policy.min_rows:,}"
    if (rows := about.get("rows_per_person", policy.unit.rows)) != policy.unit.rows:
        yield f"it was enrolled with {rows} rows per person, and person.rows is {policy.unit.rows}"


def _goes_on(account: Account) -> bool:
    return max(account.rounds, default=0) < float(account.about.get("n_rounds", "inf"))


def _name(hash: str, account: Account) -> str:
    return repr(account.about.get("name") or hash[:12])
