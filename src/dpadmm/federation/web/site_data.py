"""The data of a site's page, for its owner only: budget over time, studies, proposals, and the last releases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import DPADMMError, RefusalError
from dpadmm.federation.health import Status, site_alarms
from dpadmm.federation.site.decisions import decisions
from dpadmm.federation.site.lifecycle import Participation, participation
from dpadmm.federation.site.proposals import Proposal, offers, proposals
from dpadmm.sites.accounts import budget_history
from dpadmm.sites.site import Site
from dpadmm.studies.rendering import describe_releases
from dpadmm.trusted.ledger import MARK, LedgerState, read_ledger

LEDGER_SECONDS = 2.0
"""Seconds between readings of a ledger that changes."""

MAX_POINTS, MAX_RELEASES = 300, 20
"""Limits of the points of the budget's curve and of the releases that the page receives."""


class SiteData:
    """Snapshots of a site. ``status`` returns the latest status of its process."""

    def __init__(self, site: Site, status: Callable[[], Status]) -> None:
        self._site, self._status = site, status
        self._folder = site.path.parent
        self._read_at, self._due = (0, 0), 0.0
        """Time and size of the mark at the last reading of the ledger, and when it may be read again."""
        self._cached_epsilon = lru_cache(maxsize=1000)(site.policy.epsilon_of)
        self._ledger = LedgerState()
        self._history: list[list[Any]] = []

    def snapshot(self) -> Status:
        """Return the state of the site. Nothing of it leaves the machine."""
        status, problems = self._status(), list[DPADMMError]()
        alarms = [alarm._asdict() for alarm in site_alarms(status, self._folder)]  # before the status is old
        try:
            self._read_ledger()
        except RefusalError as refusal:
            problems.append(refusal)
        return {
            "site": {key: status[key] for key in ("site", "broker", "connected", "connection_since", "server_silent")},
            "alarms": alarms,
            "budget": self._budget(),
            "proposals": list(self._proposals(problems)),
            "studies": list(self._studies(status, problems)),
            "releases": list(self._releases()),
            "problems": [str(problem) for problem in problems],
        }

    def _read_ledger(self) -> None:
        """Read the ledger if it changed, but not after each release of a running study."""
        if time.monotonic() < self._due:
            return
        mark = (self._site.ledger / MARK).stat()
        if self._read_at != (found := (mark.st_mtime_ns, mark.st_size)):
            self._ledger = read_ledger(self._site.ledger)
            self._history = self._curve()
            self._read_at, self._due = found, time.monotonic() + LEDGER_SECONDS

    def refresh(self) -> None:
        """Read the ledger at the next snapshot, because the owner has decided."""
        self._due = 0.0

    def _epsilon(self, mu_squared: Fraction | float) -> float:
        return self._cached_epsilon(max(0.0, float(mu_squared)))

    def _budget(self) -> Status:
        """Return ε at the owner's δ of each part of the budget. Σμ² of the parts adds up; ε does not."""
        state, policy = self._ledger, self._site.policy
        cap = Fraction(policy.cap)
        budget = {
            "delta": policy.delta,
            "limit": policy.epsilon,
            "spent": self._epsilon(state.spent),
            "promised": self._epsilon(state.promised),
            "left": self._epsilon(cap - state.promised),
            "shares": {
                "spent": float(state.spent / cap),
                "reserved": float((state.promised - state.spent) / cap),
            },
            "history": self._history,
        }
        if state.promised != state.collusion_promised:
            budget["collusion_promised"] = self._epsilon(state.collusion_promised)
        return budget

    def _curve(self) -> list[list[Any]]:
        """Return (time, ε spent, ε spent or reserved, limit) after some records, always including the last one."""
        points = [point for point in budget_history(self._ledger) if point.cap > 0.0]
        step = max(1, -(-len(points) // MAX_POINTS))
        points = [*points[:-1:step], *points[-1:]]
        sums = np.array([[float(amount) for amount in point[1:]] for point in points])
        epsilons = exact_epsilon(np.sqrt(sums).ravel(), np.full(sums.size, self._site.policy.delta)).reshape(sums.shape)
        return [[point.at, *row] for point, row in zip(points, epsilons.tolist(), strict=True)]

    def _proposals(self, problems: list[DPADMMError]) -> Iterator[Status]:
        try:
            offered, found = offers(self._folder), proposals(self._folder)
        except DPADMMError as problem:
            problems.append(problem)
            return
        for proposal in found:
            yield self._proposal(proposal, is_offered=proposal.study.hash in offered)

    def _proposal(self, proposal: Proposal, *, is_offered: bool) -> Status:
        study, policy, state = proposal.study, self._site.policy, self._ledger
        sums = state.promised, state.collusion_promised
        obstacles = [limit.sentence for limit in policy.evaluate(study.terms, None, sums) if not limit.holds]
        return {
            "name": study.name,
            "hash": study.hash,
            "at": proposal.at,
            "method": study.training.method.name,
            "n_rounds": study.training.planned_rounds,
            "releases": describe_releases(study)[0],
            "epsilon": self._epsilon(policy.cost(study.terms.plan)),
            "obstacles": obstacles,
            "is_draft": study.is_draft,
            "is_offered": is_offered,
            "needs_hash": study.terms.masking is not None,
        }

    def _studies(self, status: Status, problems: list[DPADMMError]) -> Iterator[Status]:
        live = {study["hash"]: study for study in status["studies"]}
        for decision in reversed(decisions(self._folder, problems.append)):
            study, account = decision.study, self._ledger.accounts.get(decision.study.hash)
            kind = participation(decision.kind, account.ending if account else "", None).value
            shown = live.get(study.hash, {"state": kind, "reason": None, "asked_at": None})
            is_open = shown["state"] in (Participation.ACTIVE, Participation.BLOCKED)
            yield {
                "name": study.name,
                "hash": study.hash,
                "state": shown["state"],
                "reason": shown["reason"],
                "asked_at": shown["asked_at"],
                "decided_at": decision.at,
                "rounds": len(account.rounds) if account else 0,
                "n_rounds": study.training.planned_rounds,
                "epsilon": self._epsilon(account.spent) if account else None,
                "planned_epsilon": self._epsilon(account.reservation.mu_squared) if account else None,
                "actions": ["leave"] if is_open else ["accept"] if kind == "declined" and not account else [],
                "needs_hash": study.terms.masking is not None,
            }

    def _releases(self) -> Iterator[Status]:
        accounts = self._ledger.accounts
        spends = [record for record in self._ledger.records if record.kind == "spend"]
        for record in reversed(spends[-MAX_RELEASES:]):
            name = accounts[record.study].about.get("name") or record.study[:12]
            yield {
                "seq": record.seq,
                "at": record.at,
                "study": name,
                "round": record.round,
                "epsilon": self._epsilon(record.mu_squared),
            }
