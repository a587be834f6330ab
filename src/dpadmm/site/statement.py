"""The privacy statement of one site about one study, from its ledger."""

from __future__ import annotations

import math

from dpadmm._base.errors import StudyError
from dpadmm.privacy.plan import plan_from_json
from dpadmm.privacy.statement import EXACT, AgentGroup, Statement, stated_releases
from dpadmm.trusted.ledger_state import Account

_LEDGER_KEYS = ("name", "method", "plan", "delta", "n_rows", "rows_per_person")


def of_account(study: str, account: Account, *, site: str, version: str) -> Statement:
    """The statement of one site about one study of its ledger."""
    about = account.about
    if missing := [key for key in _LEDGER_KEYS if key not in about]:
        raise StudyError(
            f"study {study[:12]} was not enrolled by a guard: the ledger has no {', '.join(missing)}"
        )
    plan, k = plan_from_json(about["plan"]), about["rows_per_person"]
    group = AgentGroup({site: about["n_rows"]}, k, stated_releases(plan.tally(), plan.tally(account.rounds)))
    if not math.isclose(account.reservation.mu_squared, k**2 * float(plan.mu_squared()), rel_tol=1e-9):
        raise StudyError(f"study {study[:12]} reserved another Σμ² than the releases of its plan cost")
    delta = float(about["delta"]) if type(about["delta"]) is int else about["delta"]
    return Statement(about["name"], study, about["method"], EXACT, delta, (group,), version)
