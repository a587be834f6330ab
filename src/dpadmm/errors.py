"""Errors and warnings: each message says what is wrong, where, and what to do."""

from __future__ import annotations


class DpadmmError(Exception):
    """Base of every error that a user of dpadmm can cause or cure."""


class StudyError(DpadmmError, ValueError):
    """A setting is missing, unknown, out of range, or promises privacy that would not hold."""


class DataError(DpadmmError, ValueError):
    """The rows or labels cannot be used as they are."""


class ConvergenceWarning(UserWarning):
    """An optimiser stopped before it reached its tolerance."""


class PerformanceWarning(UserWarning):
    """Correct, but slower than it could be."""
