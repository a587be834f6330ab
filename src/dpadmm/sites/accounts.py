"""What a ledger says about the studies in it: broken promises, and privacy reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpadmm.accounting.release_plan import plan_from_json
from dpadmm.errors import StudyError
from dpadmm.trusted.ledger import Account, LedgerState
from dpadmm.trusted.policy import MaskingTerms, Policy, Terms

if TYPE_CHECKING:
    from dpadmm.accounting.report import PrivacyReport


def broken_promises(policy: Policy, book: LedgerState) -> list[str]:
    """A sentence for every enrolled study that lowered limits keep from ending as agreed: for the owner."""
    still_open = {hash: each for hash, each in book.accounts.items() if not each.closed and _goes_on(each)}
    told = [
        f"{_name(hash, account)} is enrolled and will be refused: {why}; raise the limit, or leave the study"
        for hash, account in still_open.items()
        for why in _reasons(policy, account)
    ]
    names = ", ".join(_name(*pair) for pair in still_open.items())
    limits = {(book.promised, policy.cap, book.spent): ""}
    alone = (book.collusion_promised, policy.collusion_cap, book.collusion_spent)
    limits.setdefault(alone, " if all other sites work together")
    for sums, whose in limits.items():
        if still_open and float(sums[0]) > sums[1]:
            asked, cap, spent = (policy.epsilon_of(each) for each in sums)
            told.append(
                f"your limit{whose}, ε {cap:.4f} at δ = {policy.delta:g}, is below what was promised, ε {asked:.4f} "
                f"({spent:.4f} of it released): not every enrolled study can end ({names}); raise the limit, or "
                "leave a study"
            )
    return told


def _reasons(policy: Policy, account: Account) -> Iterator[str]:
    about = account.about
    if "plan" not in about:  # a reservation that no guard made
        return
    for limit in policy.evaluate(terms_of(account), about["n_rows"], promised=None):
        if not limit.holds:
            yield limit.sentence
    if (rows := about["rows_per_person"]) != policy.unit.rows:
        yield f"it was enrolled with {rows} rows per person, and person.rows is {policy.unit.rows}"


def terms_of(account: Account) -> Terms:
    """What a study asks for, as the ledger has it."""
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
        plan=plan_from_json(about["plan"]),
        statistics={},
        delta=about["delta"],
        may_miss_rounds=account.may_miss_rounds,
        masking=masking,
    )


def _goes_on(account: Account) -> bool:
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
    plan, k = plan_from_json(about["plan"]), about["rows_per_person"]
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
