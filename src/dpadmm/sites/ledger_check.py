"""Compare a privacy report with the owner's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from dpadmm.accounting.report import PrivacyReport
from dpadmm.errors import StudyError
from dpadmm.sites.accounts import report_of_account
from dpadmm.trusted.ledger import read_ledger


class LedgerEntry(NamedTuple):
    """A study in a ledger that agrees with its privacy report. Rounds and Σμ², and the number of other studies."""

    charged: int
    released: int
    spent: float
    reserved: float
    other_studies: int

    @property
    def sentence(self) -> str:
        """The agreement in words."""
        others = f" Other studies in the ledger, not included: {self.other_studies}." if self.other_studies else ""
        return (
            f"The ledger agrees: {self.released} of {self.charged} rounds released, Σμ² {self.spent:.6g} of "
            f"{self.reserved:.6g}.{others}"
        )


def compare_with_ledger(report: PrivacyReport, folder: Path) -> LedgerEntry:
    """Return the ledger's entry of the study, or raise StudyError if it contradicts the report."""
    if not report.exact_noise or report.study_hash is None:
        raise StudyError("the privacy report is for a simulated run, which no ledger records")
    ledger = read_ledger(folder)
    account = ledger.accounts.get(report.study_hash)
    if account is None:
        raise StudyError(f"the ledger in {folder} has no study {report.study_hash}")
    # With the rules of the ledger, this shows that no more was spent than the report charges
    own = report_of_account(report.study_hash, account, site="this site")
    (recorded,) = _terms(own)
    stated = _terms(report)
    matching = [terms for terms in stated if {**terms, "released": recorded["released"]} == recorded]
    if not matching:
        raise StudyError(f"the privacy report contradicts the ledger in {folder}: {_difference(stated, recorded)}")
    if (released := min(terms["released"] for terms in matching)) > recorded["released"]:
        raise StudyError(
            f"the ledger in {folder} has {recorded['released']} releases, but the privacy report has {released}"
        )
    return LedgerEntry(
        charged=recorded["charged"],
        released=recorded["released"],
        spent=float(account.spent),
        reserved=account.reservation.mu_squared,
        other_studies=len(ledger.accounts) - 1,
    )


def _terms(report: PrivacyReport) -> list[dict[str, Any]]:
    """Return the terms of every distinct agent, for comparison."""
    return [
        {
            "name": report.study,
            "method": report.method,
            "delta": report.delta,
            "n_rows": n_rows,
            "rows_per_person": group.rows_per_person,
            "statistic": [statistic for statistic, _, _ in group.gaussian_counts],
            "noise_multiplier": [z for _, z, _ in group.gaussian_counts],
            "charged": sum(counts.charged for counts in group.releases),
            "released": sum(counts.released for counts in group.releases),
        }
        for i, group in enumerate(report.groups)
        for n_rows in sorted(set(report.members(i).values()))
    ]


def _difference(stated: list[dict[str, Any]], recorded: dict[str, Any]) -> str:
    if len(stated) > 1:
        return "none of its agents matches the ledger"
    name = next(name for name, value in recorded.items() if stated[0][name] != value and name != "released")
    return f"it has {name} {stated[0][name]!r}, the ledger {recorded[name]!r}"
