"""What a ledger's records add up to, and the rules for the next one: no files, no clock, no noise.

Budgets are ``Σμ²``. An owner sets a cap; a study reserves a part of it, spends it round by round, and gives
the rest back when it is closed. Sums are exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Any, NamedTuple

from dpadmm._base.errors import Refusal

START = "0" * 64


class Record(NamedTuple):
    """One line of the ledger; ``content`` is the SHA-256 of its payload (an upload, or about a study)."""

    kind: str
    study: str
    mu_squared: float
    round: int = 0
    digest: str = ""
    seq: int = 0
    at: str = ""
    content: str = ""

    def chain(self, before: str) -> str:
        """SHA-256 of the chain before, a line break, and this record as a JSON array."""
        return sha256(f"{before}\n{json.dumps(self)}".encode()).hexdigest()


@dataclass
class Account:
    """A study: what it reserved, and what it released in which round. Sums are exact."""

    reservation: Record
    about: Mapping[str, Any]
    may_miss_rounds: bool
    spent: Fraction = Fraction(0)
    rounds: dict[int, Record] = field(default_factory=dict)
    closed: bool = False

    def check_round(self, round: int) -> None:
        """Rounds count up from 1; some may be missed only if the study says so."""
        last = next(reversed(self.rounds), 0)
        if self.closed:
            raise Refusal("study-closed", "this study is closed in the ledger and releases nothing more")
        if round <= last:
            raise Refusal("round-old", f"round {round} is not above the last one, {last}")
        if round > last + 1 and not self.may_miss_rounds:
            text = f"round {last + 1} is next, not {round}: this study allows no missed rounds"
            raise Refusal("round-gap", text)


class LedgerState:
    """What the records add up to, and the rules for the next one."""

    def __init__(self) -> None:
        self.seq, self.fingerprint, self.cap = 0, START, 0.0
        self.records: list[Record] = []
        self.accounts: dict[str, Account] = {}

    @property
    def spent(self) -> Fraction:
        """Σμ² of all releases."""
        return sum((account.spent for account in self.accounts.values()), Fraction(0))

    @property
    def promised(self) -> Fraction:
        """Σμ² of all that was released and that open studies may still release."""
        promises = (a.spent if a.closed else Fraction(a.reservation.mu_squared) for a in self.accounts.values())
        return sum(promises, Fraction(0))

    def account(self, study: str) -> Account:
        if study not in self.accounts:
            raise Refusal("study-unknown", "this study has reserved nothing in the ledger; enrol it first")
        return self.accounts[study]

    def check(self, record: Record) -> None:
        """Refuse a record that may not come next."""
        if record.kind == "reserve":
            if known := self.accounts.get(record.study):
                left = "left here before, which is for good; under another name it is another study"
                other = "already enrolled, with other numbers: was the limit of rows per person changed?"
                raise Refusal("study-changed", f"this study was {left if known.closed else other}")
            _afford("budget-cap", record.mu_squared, self.cap, self.promised)
        elif record.kind == "spend":
            account = self.account(record.study)
            account.check_round(record.round)
            _afford("budget-reservation", record.mu_squared, account.reservation.mu_squared, account.spent)
            _afford("budget-cap", record.mu_squared, self.cap, self.spent)

    def apply(self, record: Record, payload: bytes) -> None:
        """Take in a record that was checked."""
        self.seq, self.fingerprint = record.seq, record.chain(self.fingerprint)
        self.records.append(record)
        if record.kind == "cap":
            self.cap = record.mu_squared
        elif record.kind == "reserve":
            self.accounts[record.study] = Account(record, **json.loads(payload))
        elif record.kind == "spend":
            self.accounts[record.study].rounds[record.round] = record
            self.accounts[record.study].spent += Fraction(record.mu_squared)
        else:
            self.accounts[record.study].closed = True

    def line(self) -> bytes:
        """What the mark says of the last record."""
        return f"{self.seq:012d} {self.fingerprint}\n".encode()


def fits(asked: float, used: Fraction, allowed: float) -> bool:
    """Whether Σμ² of ``asked`` fits beside what is used: the one rule for review, enrolment and ledger.

    Exact and rounded once: n rounds fit n times their μ², and no limit is exceeded by more than 2⁻⁵³ of it.
    """
    return float(used + Fraction(asked)) <= allowed


def _afford(code: str, asked: float, allowed: float, used: Fraction) -> None:
    if not fits(asked, used, allowed):
        numbers = f"asked {asked:.9g}, allowed {allowed:.9g}, left {max(0.0, allowed - float(used)):.9g}"
        whose = "the owner's cap" if code == "budget-cap" else "the study's reservation"
        raise Refusal(code, f"this would exceed {whose} (Σμ²: {numbers})")
