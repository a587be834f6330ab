"""Studies in a ledger: those that lowered limits keep from ending, and their privacy reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.errors import StudyError
from dpadmm.trusted.ledger import Account, LedgerState
from dpadmm.trusted.policy import MaskingTerms, Policy, Terms

if TYPE_CHECKING:
    from dpadmm.accounting.report import PrivacyReport


def broken_promises(policy: Policy, state: LedgerState) -> list[str]:
    """Return an error for every enrolled study that lowered limits keep from ending as agreed: for the owner."""
    unfinished = {
        hash: account for hash, account in state.accounts.items() if not account.closed and _continues(account)
    }
    errors = [
        f"{_name(hash, account)} is enrolled and will be refused: {reason}; raise the limit, or leave the study"
        for hash, account in unfinished.items()
        for reason in _reasons(policy, account)
    ]
    names = ", ".join(_name(*pair) for pair in unfinished.items())
    limits = {(state.promised, policy.cap, state.spent): ""}
    collusion = (state.collusion_promised, policy.collusion_cap, state.collusion_spent)
    limits.setdefault(collusion, " if all other sites collude")
    for sums, condition in limits.items():
        if unfinished and float(sums[0]) > sums[1]:
            promised, cap, spent = (policy.epsilon_of(total) for total in sums)
            errors.append(
                f"your limit{condition}, ε {cap:.4f} at δ = {policy.delta:g}, is below what was promised, "
                f"ε {promised:.4f} ({spent:.4f} of it released): not every enrolled study can end ({names}); raise "
                "the limit, or leave a study"
            )
    return errors


def _reasons(policy: Policy, account: Account) -> Iterator[str]:
    about = account.about
    if "plan" not in about:  # not reserved by a guard
        return
    for limit in policy.evaluate(terms_of(account), about["n_rows"], promised=None):
        if not limit.holds:
            yield limit.sentence
    if (rows := about["rows_per_person"]) != policy.unit.rows:
        yield f"it was enrolled with {rows} rows per person, and person.rows is {policy.unit.rows}"


def terms_of(account: Account) -> Terms:
    """Return the terms of a study, from the ledger."""
    about = account.about
    masking = about.get("masking")
    if masking:
        masking = MaskingTerms(**masking)._replace(
            roster=tuple((n, bytes.fromhex(key)) for n, key in masking["roster"])
        )
    return Terms(
        hash=account.reservation.study,
        name=about["name"],
        method=about["method"],
        loss=about["loss"],
        plan=ReleasePlan.from_list(about["plan"]),
        statistics={},
        delta=about["delta"],
        may_miss_rounds=account.may_miss_rounds,
        masking=masking,
    )


def _continues(account: Account) -> bool:
    if "plan" not in account.about:
        return True
    return max(account.rounds, default=0) < terms_of(account).plan.n_rounds


def _name(hash: str, account: Account) -> str:
    return repr(account.about.get("name") or hash[:12])


_LEDGER_KEYS = ("name", "method", "plan", "delta", "n_rows", "rows_per_person")


def report_of_account(study: str, account: Account, *, site: str) -> PrivacyReport:
    """Return the privacy report of one study in a site's ledger. All planned rounds are charged."""
    from dpadmm.accounting.report import AgentReleases, PrivacyReport  # an agent does not need it

    about = account.about
    if missing := [key for key in _LEDGER_KEYS if key not in about]:
        raise StudyError(f"study {study[:12]} was not enrolled by a guard: the ledger has no {', '.join(missing)}")
    plan, k = ReleasePlan.from_list(about["plan"]), about["rows_per_person"]
    releases = AgentReleases.from_tallies(
        plan.tally(), plan.tally(account.rounds), charge_planned=True, rows_per_person=k
    )
    report = PrivacyReport(
        [releases],
        [about["n_rows"]],
        float(about["delta"]) if type(about["delta"]) is int else about["delta"],
        about["method"],
        exact_noise=True,
        names=[site],
        study=about["name"],
        study_hash=study,
        min_honest_sites=account.shares if account.shares > 1 else None,
    )
    report.check_verifiable()
    if not math.isclose(account.reservation.mu_squared, k**2 * float(plan.mu_squared()), rel_tol=1e-9):
        raise StudyError(f"study {study[:12]} reserved another Σμ² than the releases of its plan cost")
    return report


class BudgetPoint(NamedTuple):
    """Σμ² after a record of the ledger: spent, spent or reserved, and the owner's cap."""

    at: str
    spent: Fraction
    promised: Fraction
    cap: float


def budget_history(state: LedgerState) -> list[BudgetPoint]:
    """Return the budget after each record of a ledger. The last point is the current budget."""
    spent, cap, points = Fraction(0), 0.0, list[BudgetPoint]()
    by_study, reserved = dict[str, Fraction](), dict[str, Fraction]()  # released, and reserved if the study is open
    for record in state.records:
        mu_squared = Fraction(record.mu_squared)
        if record.kind == "cap":
            cap = record.mu_squared
        elif record.kind == "spend":
            by_study[record.study] += mu_squared
            spent += mu_squared
        elif record.kind in ("reserve", "restore"):
            by_study[record.study], reserved[record.study] = Fraction(0), mu_squared
        elif record.study in reserved:
            del reserved[record.study]
        if record.kind == "restore":  # all reserved releases count as made
            spent += sum((amount - by_study[study] for study, amount in reserved.items()), Fraction(0))
            by_study |= reserved
            reserved.clear()
        held = sum((amount - by_study[study] for study, amount in reserved.items()), Fraction(0))
        points.append(BudgetPoint(record.at, spent, spent + held, cap))
    return points
