"""Privacy reports of agents whose rounds are all alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpadmm.accounting.events import AnyRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.accounting.report import PrivacyReport


def constant_report(
    releases: Sequence[AnyRelease], done: Sequence[int], planned: Sequence[int], *args: Any, **more: Any
) -> PrivacyReport:
    """Agent i makes ``releases[i]`` in every round, of ``planned[i]`` rounds in ``done[i]``."""
    plans = [ReleasePlan.constant(each, int(n)) for each, n in zip(releases, planned, strict=True)]
    released = [plan.tally(range(1, int(n) + 1)) for plan, n in zip(plans, done, strict=True)]
    return PrivacyReport(released, [plan.tally() for plan in plans], *args, **more)
