"""The audit: an attack on the shipped agent, to see that it keeps its promise, and that the attack works.

``run_audit(AuditPlan())`` plays the game of ``game.py`` many times on the real code and judges what was seen.
"""

from __future__ import annotations

from dpadmm.audit.run import Audit, AuditPlan, Outcome, games_of, run_audit

__all__ = ["Audit", "AuditPlan", "Outcome", "games_of", "run_audit"]
