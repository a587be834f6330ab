"""Errors and warnings. Each message states the problem, its location, and a next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_MESSAGE_LENGTH = 1600
"""Maximum number of characters of a message. The middle of a longer one is left out."""


MAX_PROBLEMS = 20
"""Number of problems in a message."""


class DPADMMError(Exception):
    """Base class of the errors that a user of dpadmm can cause or correct."""

    def __str__(self) -> str:
        text, limit = super().__str__(), MAX_MESSAGE_LENGTH
        return text if len(text) <= limit else f"{text[: limit - 400]} … {text[-390:]}"


class StudyError(DPADMMError, ValueError):
    """A setting is missing, unknown, out of range, or incompatible with the privacy guarantee."""


class ServiceUnavailableError(DPADMMError):
    """A service or file is temporarily unavailable. The same command can succeed later."""


class DataError(DPADMMError, ValueError):
    """The rows or labels are invalid or do not match the study."""


class TableError(DataError):
    """A table has one problem or several, which are all listed.

    ``problems`` has them by column (:class:`dpadmm.data.problems.ColumnProblem`). The message has no cells;
    ``problem.locations.values`` has some, for the owner of the table only.
    """

    def __init__(self, location: object, problems: Sequence[Any]) -> None:
        super().__init__(location, tuple(problems))
        self.location, self.problems = location, tuple(problems)

    @property
    def summary(self) -> str:
        """The number of problems, or the only problem."""
        n = len(self.problems)
        return f"{self.location} has {n} problems" if n > 1 else f"{self.location}: {self.problems[0].text}"

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.summary
        more = len(self.problems) - MAX_PROBLEMS
        lines = [f"  {problem.text}" for problem in self.problems[:MAX_PROBLEMS]]
        return "\n".join([f"{self.summary}:", *lines, *([f"  and {more} more"] if more > 0 else [])])


class RefusalError(DPADMMError):
    """A site, or the ledger of its data, refuses a request.

    ``code`` is short and fixed, for programs. The text is for people. The reply to a request depends on public
    values only. The codes ``study-unfit`` and ``data-changed`` occur at enrolment, which the owner starts. They
    depend on rows, and the reason shown to the owner (``__cause__``) may quote a cell. Only the return value of
    :meth:`wire` may be sent to the server.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])

    def wire(self) -> str:
        """Return the part of the error that may leave the owner's machine."""
        return self.code


class BudgetExceededError(DPADMMError):
    """A fit requires more ε than is left in its accountant. Nothing was released.

    ``asked``, ``allowed`` and ``left`` are total ε at the accountant's δ.
    """

    def __init__(self, asked: float, allowed: float, left: float, delta: float) -> None:
        super().__init__(asked, allowed, left, delta)
        self.asked, self.allowed, self.left, self.delta = asked, allowed, left, delta

    def __str__(self) -> str:
        return (
            f"the fit would exceed its budget at δ = {self.delta:g}: requested ε = {self.asked:.4g}, "
            f"allowed ε = {self.allowed:.4g}, left ε = {self.left:.4g}; choose a smaller ε"
        )


class DivergenceError(DPADMMError, ArithmeticError):
    """Training diverged: the weights are no longer finite, so there is no model.

    Divergence is detected in the consensus of a round, which is public. ``round`` reveals nothing else about rows.
    """

    def __init__(self, method: str, round: int, n_rounds: int, hint: str) -> None:
        super().__init__(method, round, n_rounds, hint)
        self.method, self.round, self.n_rounds, self.hint = method, round, n_rounds, hint

    def __str__(self) -> str:
        return (
            f"{self.method} {DIVERGED} {self.round} of {self.n_rounds}: the weights are no longer finite "
            f"numbers, so there is no model; use {self.hint}"
        )


DIVERGED = "diverged in round"
"""Part of the message, which identifies the error where only its text is stored."""


class ConvergenceWarning(UserWarning):
    """An optimiser stopped before it reached its tolerance."""


class PerformanceWarning(UserWarning):
    """The result is correct but slower than necessary."""


class PrivacyLeakWarning(UserWarning):
    """The privacy guarantee does not cover a value: it was inferred from the data, or its noise is not secret."""
