"""Privacy audit: an attack on the shipped agent. It verifies the guarantee, and that the attack itself works.

``run_audit(AuditPlan())`` plays the games of ``game.py`` many times with the real code and evaluates the outcomes.
"""

from __future__ import annotations

from dpadmm.audit.run import Audit, AuditPlan, Outcome, games_of, run_audit

__all__ = ["Audit", "AuditPlan", "Outcome", "games_of", "run_audit"]
