"""What a data owner allows, whoever asks: nothing that comes over a wire can loosen it."""

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
    """What a study with secure aggregation promises: every answer is masked over at least ``quorum`` sites.

    Every site adds 1/√honest of the noise, so that any ``honest`` of them together add all of it.
    """

    honest: int
    quorum: int
    most_rows: int
    """Public: no site has more rows, and all draw their noise for so many."""
    roster: tuple[tuple[str, bytes], ...]
    """Names and X25519 public keys of the sites."""

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "roster": [[name, key.hex()] for name, key in self.roster]}


class Terms(NamedTuple):
    """What a study asks of an agent: the releases of its plan, each a noisy sum over rows of a statistic."""

    hash: str
    name: str
    method: str
    loss: str
    """Empty where nothing is trained or tested."""
    plan: ReleasePlan
    statistics: Mapping[str, Query]
    delta: float
    may_miss_rounds: bool
    masking: MaskingTerms | None
    """None: every site adds all of the noise to its own answer."""

    @property
    def shares(self) -> int:
        """If all other sites work together, a release costs so many times its μ²."""
        return self.masking.honest if self.masking else 1

    @property
    def quorum(self) -> int:
        """Sites without which nothing is answered."""
        return self.masking.quorum if self.masking else 1

    def as_json(self) -> dict[str, Any]:
        """What a ledger keeps of it: to enrol the study again with anything else is refused."""
        bounds = {
            name: {"row_norm": each.row_norm, "n_features": each.n_features, "shape": list(each.shape)}
            for name, each in self.statistics.items()
        }
        return {
            "name": self.name,
            "method": self.method,
            "loss": self.loss,
            "plan": self.plan.as_json(),
            "statistics": bounds,
            "delta": self.delta,
            **({"masking": self.masking.as_json()} if self.masking else {}),
        }


Sums = tuple[Fraction, Fraction]
"""Σμ² if enough sites are honest, and if all others work together."""


class Limit(NamedTuple):
    """One of the owner's limits: what is asked, what is allowed, what is left of it."""

    name: str
    code: str
    asked: str | int | float
    allowed: tuple[str, ...] | int | float
    left: float | None
    holds: bool
    sentence: str
    """What to say where it does not hold; the budget's is empty where it does."""


class MaskingLimits(NamedTuple):
    """What an owner wants of studies with secure aggregation."""

    epsilon_alone: float
    """Total ε at the owner's δ if all other sites work together, across all studies."""
    min_honest: int
    min_withstood: int
    """Sites that may work together with the aggregator without harm, at least: quorum − honest."""


@dataclass(frozen=True)
class Policy:
    """The owner's limits: total (ε, δ) for any one person across all studies, and what may be asked at all.

    A person has at most ``unit.rows`` rows, k; every release is charged for all of them: ``(k/z)²``. Without
    ``masking`` there is no secure aggregation.
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
        """Σμ² that (ε, δ) allows."""
        return mu_from_epsilon(self.epsilon, self.delta) ** 2

    @cached_property
    def cap_alone(self) -> float:
        """Σμ² that is allowed if all other sites work together."""
        return mu_from_epsilon(self.masking.epsilon_alone, self.delta) ** 2 if self.masking else self.cap

    def price(self, release: AnyRelease) -> float:
        """μ² of one release, for a person with all the rows one may have."""
        return float((self.unit.rows / gaussian(release).noise_multiplier) ** 2)

    def cost(self, plan: ReleasePlan) -> float:
        """Σμ² of all releases of a plan: exact, and rounded once."""
        return float(sum(Fraction(self.price(each)) * n for each, n in plan.tally()))

    def epsilon_of(self, mu_squared: float | Fraction) -> float:
        """ε at the owner's δ."""
        return exact_epsilon(math.sqrt(mu_squared), self.delta)

    def evaluate(self, terms: Terms, n_rows: int | None, promised: Sums | None) -> tuple[Limit, ...]:
        """Every limit, held or not; that on rows if their number is known, the budgets if ``promised`` is.

        ``promised`` is the Σμ² that other studies have spent or may still spend, and that if all other sites work
        together, whose limit is left out where it is the same.
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
                f"the owner does not allow so many rounds (asked {terms.plan.n_rounds}, allowed {self.max_rounds})",
            ),
            *(self._masking(terms.masking) if terms.masking else ()),
        ]
        if n_rows is not None:
            text = f"there are {n_rows}, the owner wants at least {self.min_rows}"
            sentence = f"too few rows for a study ({text})"
            holds = n_rows >= self.min_rows
            limits.append(Limit("rows", "policy-rows", n_rows, self.min_rows, None, holds, sentence))
        if promised is not None:
            cost = Fraction(self.cost(terms.plan))
            limits.append(self._budget("budget", "budget-cap", cost, self.cap, promised[0]))
            alone = (terms.shares * cost, self.cap_alone, promised[1])
            if alone != (cost, self.cap, promised[0]):
                limits.append(self._budget("alone", "policy-alone", *alone))
        return tuple(limits)

    def check(self, terms: Terms, n_rows: int | None = None, promised: Sums | None = None) -> None:
        """Refuse by the first limit that does not hold."""
        for limit in self.evaluate(terms, n_rows, promised):
            if not limit.holds:
                raise RefusalError(limit.code, limit.sentence)

    def _masking(self, asked: MaskingTerms) -> Iterator[Limit]:
        names = ("local", "secure_aggregation") if self.masking else ("local",)
        sentence = "the owner does not allow secure aggregation (allow in [secure_aggregation])"
        yield Limit("trust", "policy-trust", "secure_aggregation", names, None, self.masking is not None, sentence)
        if self.masking:
            withstood = asked.quorum - asked.honest
            for name, said, value, least in (
                ("honest", "relies on {} honest sites", asked.honest, self.masking.min_honest),
                ("withstood", "withstands {} sites that work together", withstood, self.masking.min_withstood),
            ):
                sentence = f"the study {said.format(value)}, the owner wants at least {least}"
                yield Limit(name, "policy-honest", value, least, None, value >= least, sentence)

    def _budget(self, name: str, code: str, asked: Fraction, cap: float, promised: Fraction) -> Limit:
        cost, left, holds = float(asked), float(max(Fraction(0), Fraction(cap) - promised)), fits(asked, promised, cap)
        sentence = ""
        if not holds:  # three ε take their time, and every enrolment comes here
            shown = [f"{self.epsilon_of(each):.4f} (Σμ² {each:.4g})" for each in (cost, cap, left)]
            text = "asked {}, allowed {}, left {}".format(*shown)
            whose = " if all other sites work together" if name == "alone" else ""
            sentence = f"too much for the owner's total ε at δ = {self.delta:g}{whose}: {text}"
        return Limit(name, code, cost, cap, left, holds, sentence)


def _one_of(kind: str, code: str, asked: str, allowed: frozenset[str]) -> Limit:
    names = tuple(sorted(allowed))
    text = f"asked {asked}, allowed {', '.join(names) or 'none'}"
    sentence = f"the owner does not allow this {kind} ({text})"
    return Limit(kind, code, asked, names, None, asked in allowed, sentence)
