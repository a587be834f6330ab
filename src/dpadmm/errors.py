"""Errors and warnings: each message says what is wrong, where, and what to do."""

from __future__ import annotations

LONGEST = 1600
"""Characters of a message; one that quotes a huge value loses the middle of it."""


class DPADMMError(Exception):
    """Base of every error that a user of dpadmm can cause or cure."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 400]} … {text[-390:]}"


class StudyError(DPADMMError, ValueError):
    """A setting is missing, unknown, out of range, or promises privacy that would not hold."""


class ServiceUnavailableError(DPADMMError):
    """Something is not there now and may be later: the same command can succeed without any change."""


class DataError(DPADMMError, ValueError):
    """The rows or labels cannot be used as they are."""


class RefusalError(DPADMMError):
    """An agent, or the ledger of its data, says no.

    ``code`` is fixed and short, for programs; the text is for people. What an agent says to a request depends
    on public values alone. Enrolment is the owner's act: ``study-unfit`` and ``data-changed`` are about rows,
    and the reason that the owner sees (``__cause__``) may name a cell. Over a wire goes :meth:`wire` alone.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])

    def wire(self) -> str:
        """All that may leave the owner's machine."""
        return self.code


class BudgetExceededError(DPADMMError):
    """A fit asks for more ε than its accountant has left; nothing was released.

    ``asked``, ``allowed`` and ``left`` are total ε at the accountant's δ.
    """

    def __init__(self, asked: float, allowed: float, left: float, delta: float) -> None:
        super().__init__(asked, allowed, left, delta)
        self.asked, self.allowed, self.left, self.delta = asked, allowed, left, delta

    def __str__(self) -> str:
        return (
            f"the fit would exceed its budget at δ = {self.delta:g}: asked ε = {self.asked:.4g}, "
            f"allowed ε = {self.allowed:.4g}, left ε = {self.left:.4g}; ask for less, or stop here"
        )


class DivergenceError(DPADMMError, ArithmeticError):
    """Training ran away: its weights are no longer finite numbers, and there is no model to keep.

    It is seen in the consensus of a round, which is public: ``round`` tells no more of rows than that does.
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
"""By these words a reason is known where only its text is kept."""


class ConvergenceWarning(UserWarning):
    """An optimiser stopped before it reached its tolerance."""


class PerformanceWarning(UserWarning):
    """Correct, but slower than it could be."""


class PrivacyLeakWarning(UserWarning):
    """Something is not covered by the guarantee: it was read off the data, or its noise is not secret."""
