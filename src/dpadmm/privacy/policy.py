"""What a data owner allows, whoever asks: nothing that comes over a wire can loosen it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from dpadmm.errors import Refusal
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.calibration import mu_from_epsilon
from dpadmm.privacy.unit import ONE_ROW, PrivacyUnit


class Terms(NamedTuple):
    """What a study asks of an agent: ``n_rounds`` noisy mean gradients of ``shape`` (d, p), clipped to c1."""

    hash: str
    name: str
    method: str
    loss: str
    lipschitz: float
    shape: tuple[int, int]
    noise_multiplier: float
    n_rounds: int
    delta: float
    gaps: bool


@dataclass(frozen=True)
class Policy:
    """The owner's limits: total (ε, δ) for any one person across all studies, and what may be asked at all.

    A person has at most ``unit.rows`` rows, k; every release is charged for all of them: ``(k/z)²``.
    """

    epsilon: float
    delta: float
    methods: frozenset[str]
    losses: frozenset[str]
    max_rounds: int
    min_rows: int
    unit: PrivacyUnit = ONE_ROW
    local_metrics: bool = False

    @cached_property
    def cap(self) -> float:
        """Σμ² that (ε, δ) allows."""
        return mu_from_epsilon(self.epsilon, self.delta) ** 2

    def price(self, terms: Terms) -> float:
        """μ² of one release, for a person with all the rows one may have."""
        return (self.unit.rows / terms.noise_multiplier) ** 2

    def check(self, terms: Terms) -> None:
        """Refuse by what is asked alone, before any row is read."""
        for kind, asked, allowed in (
            ("method", terms.method, self.methods),
            ("loss", terms.loss, self.losses),
        ):
            if asked not in allowed:
                text = f"asked {asked}, allowed {', '.join(sorted(allowed)) or 'none'}"
                raise Refusal(f"policy-{kind}", f"the owner does not allow this {kind} ({text})")
        if terms.n_rounds > self.max_rounds:
            text = f"asked {terms.n_rounds}, allowed {self.max_rounds}"
            raise Refusal("policy-rounds", f"the owner does not allow so many rounds ({text})")

    def check_rows(self, n_rows: int) -> None:
        """Refuse by the number of rows."""
        if n_rows < self.min_rows:
            text = f"there are {n_rows}, the owner wants at least {self.min_rows}"
            raise Refusal("policy-rows", f"too few rows for a study ({text})")

    def check_budget(self, terms: Terms, promised: Fraction) -> None:
        """Refuse by what is left beside all that was promised to other studies."""
        cost, left = terms.n_rounds * self.price(terms), self.cap - float(promised)
        if cost > left:
            sums = (cost, self.cap, max(0.0, left))
            shown = [f"{exact_epsilon(each**0.5, self.delta):.4f} (Σμ² {each:.4g})" for each in sums]
            text = "asked {}, allowed {}, left {}".format(*shown)
            raise Refusal("budget-cap", f"too much for the owner's total ε at δ = {self.delta:g}: {text}")
