"""Privacy reports for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpadmm.accounting.events import AnyRelease, Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.accounting.report import AgentReleases, PrivacyReport, ReleaseCounts, share_equal


def constant_report(
    releases: Sequence[AnyRelease],
    done: Sequence[int],
    planned: Sequence[int],
    delta: float,
    method: str,
    *,
    charge_planned: bool = False,
    **more: Any,
) -> PrivacyReport:
    """Return a report in which agent i makes ``releases[i]`` in every round, in ``done[i]`` of ``planned[i]`` rounds.

    It has 10 + i rows.
    """
    plans = [ReleasePlan.constant(release, int(n)) for release, n in zip(releases, planned, strict=True)]
    released = [plan.tally(range(1, int(n) + 1)) for plan, n in zip(plans, done, strict=True)]
    agents = share_equal([plan.tally() for plan in plans], released, charge_planned=charge_planned)
    return PrivacyReport(agents, [10 + i for i in range(len(agents))], delta, method, **more)


def counts(z: float = 20.0, charged: int = 100, released: int = 40, statistic: str = "gradient") -> ReleaseCounts:
    """Return Gaussian releases, all of which are charged."""
    return ReleaseCounts(Release(z, statistic=statistic), charged, released, charged)


def agent_releases(*releases: ReleaseCounts, k: int = 1) -> AgentReleases:
    """Return an agent with these releases, by default 100 at z = 20."""
    return AgentReleases(releases or (counts(),), k)


def study_report(
    *agents: AgentReleases,
    names: Sequence[str] = (),
    n_rows: Sequence[int] | None = None,
    delta: float = 1e-3,
    **changes: Any,
) -> PrivacyReport:
    """Return the report of a study with exact noise, by default of one agent with 400 rows."""
    given = agents or (agent_releases(),)
    values = {"exact_noise": True, "study": "a study", "study_hash": "ab" * 32, "version": "0.1.0"} | changes
    return PrivacyReport(given, n_rows or [400] * len(given), delta, "dp_admm", names=names, **values)
