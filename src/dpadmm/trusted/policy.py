"""The owner's limits. No incoming message can relax them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.events import AnyRelease
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import ReleasePlan, fits, gaussian
from dpadmm.errors import RefusalError
from dpadmm.trusted.unit import ONE_ROW, PrivacyUnit

if TYPE_CHECKING:
    from dpadmm.queries import Query


class MaskingTerms(NamedTuple):
    """Terms of secure aggregation: every answer is masked over at least ``quorum`` sites.

    Each site adds noise with a standard deviation of 1/√honest of the total, so any ``min_honest_sites`` sites
    together add all of it.
    """

    min_honest_sites: int
    quorum: int
    max_rows_per_site: int
    """Public upper bound on the rows of a site. All sites scale their noise for this number of rows."""
    roster: tuple[tuple[str, bytes], ...]
    """Names and X25519 public keys of the sites."""

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as the ledger stores them."""
        return {**self._asdict(), "roster": [[name, key.hex()] for name, key in self.roster]}


class Terms(NamedTuple):
    """The releases that a study requests from an agent: noisy sums of statistics, as listed in its plan."""

    hash: str
    name: str
    method: str
    loss: str
    """Empty if the study neither trains nor evaluates a model."""
    plan: ReleasePlan
    statistics: Mapping[str, Query]
    delta: float
    may_miss_rounds: bool
    masking: MaskingTerms | None
    """None if each site adds all of the noise to its own answer."""

    @property
    def shares(self) -> int:
        """Factor on μ² of a release if all other sites collude."""
        return self.masking.min_honest_sites if self.masking else 1

    @property
    def quorum(self) -> int:
        """Minimum number of members of a round."""
        return self.masking.quorum if self.masking else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as the ledger stores them. Enrolling the study again with other terms is refused."""
        bounds = {
            name: {"row_norm": query.row_norm, "n_features": query.n_features, "shape": list(query.shape)}
            for name, query in self.statistics.items()
        }
        return {
            "name": self.name,
            "method": self.method,
            "loss": self.loss,
            "plan": self.plan.to_list(),
            "statistics": bounds,
            "delta": self.delta,
            **({"masking": self.masking.to_dict()} if self.masking else {}),
        }


Sums = tuple[Fraction, Fraction]
"""Σμ² if enough sites are honest, and Σμ² if all other sites collude."""


class Limit(NamedTuple):
    """One of the owner's limits, with the requested, allowed and remaining amounts."""

    name: str
    code: str
    asked: str | int | float
    allowed: tuple[str, ...] | int | float
    left: float | None
    holds: bool
    sentence: str
    """Message of the refusal. For budgets it is empty if the limit holds."""


class MaskingLimits(NamedTuple):
    """The owner's limits for studies with secure aggregation."""

    epsilon_if_others_collude: float
    """Total ε across all studies, at the owner's δ, if all other sites collude."""
    min_honest_sites: int
    min_withstood: int
    """Minimum number of sites that may collude with the server without weakening ε: quorum − min_honest_sites."""


@dataclass(frozen=True)
class Policy:
    """The owner's limits: total (ε, δ) for any one person across all studies, and the allowed kinds of studies.

    A person has at most ``unit.rows`` = k rows. Every release is charged for all of them: ``(k/z)²``. If ``masking`` is
    None, secure aggregation is not allowed.
    """

    epsilon: float
    delta: float
    methods: frozenset[str]
    losses: frozenset[str]
    max_rounds: int
    min_rows: int
    unit: PrivacyUnit = ONE_ROW
    masking: MaskingLimits | None = None

    @cached_property
    def cap(self) -> float:
        """Limit on Σμ² that corresponds to (ε, δ)."""
        return mu_from_epsilon(self.epsilon, self.delta) ** 2

    @cached_property
    def collusion_cap(self) -> float:
        """Limit on Σμ² if all other sites collude."""
        return mu_from_epsilon(self.masking.epsilon_if_others_collude, self.delta) ** 2 if self.masking else self.cap

    def release_cost(self, release: AnyRelease) -> float:
        """Return μ² of one release, for a person with ``unit.rows`` rows."""
        return float((self.unit.rows / gaussian(release).noise_multiplier) ** 2)

    def cost(self, plan: ReleasePlan) -> float:
        """Return Σμ² of all releases of a plan, summed exactly and rounded once."""
        return float(sum(Fraction(self.release_cost(release)) * n for release, n in plan.tally()))

    def epsilon_of(self, mu_squared: float | Fraction) -> float:
        """Return ε at the owner's δ."""
        return exact_epsilon(math.sqrt(mu_squared), self.delta)

    def evaluate(self, terms: Terms, n_rows: int | None, promised: Sums | None) -> tuple[Limit, ...]:
        """Return every limit, whether it holds or not.

        The limit on rows is included if ``n_rows`` is given, the budgets if ``promised`` is given. ``promised`` is the
        Σμ² that other studies have spent or may still spend: if enough sites are honest, and if all other sites
        collude. The second budget is omitted if it equals the first.
        """
        limits = [
            _one_of("method", "policy-method", terms.method, self.methods),
            *([_one_of("loss", "policy-loss", terms.loss, self.losses)] if terms.loss else []),
            Limit(
                "rounds",
                "policy-rounds",
                terms.plan.n_rounds,
                self.max_rounds,
                None,
                terms.plan.n_rounds <= self.max_rounds,
                f"too many rounds: the study has {terms.plan.n_rounds}, the owner allows {self.max_rounds}",
            ),
            *(self._masking(terms.masking) if terms.masking else ()),
        ]
        if n_rows is not None:
            sentence = f"too few rows: the table has {n_rows}, the owner requires {self.min_rows}"
            holds = n_rows >= self.min_rows
            limits.append(Limit("rows", "policy-rows", n_rows, self.min_rows, None, holds, sentence))
        if promised is not None:
            cost = Fraction(self.cost(terms.plan))
            limits.append(self._budget("budget", "budget-cap", cost, self.cap, promised[0]))
            alone = (terms.shares * cost, self.collusion_cap, promised[1])
            if alone != (cost, self.cap, promised[0]):
                limits.append(self._budget("collusion_budget", "policy-collusion", *alone))
        return tuple(limits)

    def check(self, terms: Terms, n_rows: int | None = None, promised: Sums | None = None) -> None:
        """Raise ``RefusalError`` for the first limit that does not hold."""
        for limit in self.evaluate(terms, n_rows, promised):
            if not limit.holds:
                raise RefusalError(limit.code, limit.sentence)

    def _masking(self, terms: MaskingTerms) -> Iterator[Limit]:
        names = ("plain", "secure") if self.masking else ("plain",)
        sentence = "the owner does not allow secure aggregation (set allow in [secure_aggregation])"
        yield Limit("aggregation", "policy-aggregation", "secure", names, None, self.masking is not None, sentence)
        if self.masking:
            withstood = terms.quorum - terms.min_honest_sites
            for name, meaning, value, minimum in (
                ("min_honest_sites", "honest sites assumed", terms.min_honest_sites, self.masking.min_honest_sites),
                ("withstood", "colluding sites tolerated", withstood, self.masking.min_withstood),
            ):
                sentence = f"too few {meaning}: the study has {value}, the owner requires {minimum}"
                yield Limit(name, "policy-honest", value, minimum, None, value >= minimum, sentence)

    def _budget(self, name: str, code: str, requested: Fraction, cap: float, promised: Fraction) -> Limit:
        cost, left = float(requested), float(max(Fraction(0), Fraction(cap) - promised))
        holds = fits(requested, promised, cap)
        sentence = ""
        if not holds:  # three ε take time to compute, and every enrolment evaluates this limit
            shown = [f"{self.epsilon_of(amount):.4f} (Σμ² {amount:.4g})" for amount in (cost, cap, left)]
            text = "requested {}, allowed {}, left {}".format(*shown)
            scope = " if all other sites collude" if name == "collusion_budget" else ""
            sentence = f"exceeds the owner's total ε at δ = {self.delta:g}{scope}: {text}"
        return Limit(name, code, cost, cap, left, holds, sentence)


def _one_of(kind: str, code: str, requested: str, allowed: frozenset[str]) -> Limit:
    names = tuple(sorted(allowed))
    sentence = f"the owner does not allow {kind} {requested} (allowed: {', '.join(names) or 'none'})"
    return Limit(kind, code, requested, names, None, requested in allowed, sentence)
