"""Privacy calculator: ε of a number of rounds with given noise, and the rounds that a budget allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpadmm.accounting.calibration import round_epsilon_from_noise
from dpadmm.accounting.events import Release
from dpadmm.accounting.gaussian import (
    Accountant,
    affordable_rounds,
    exact_epsilon,
    gaussian_mu,
    group_mu,
    paper_epsilon,
    pld_epsilon,
    rdp_epsilon,
)
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.rendering import Block, Fact, Facts, Paragraph, Renderable, Rendering
from dpadmm.rendering.formats import plural


@dataclass(frozen=True)
class PrivacyCalculation(Renderable):
    """The privacy loss of Gaussian releases with equal noise.

    Attributes
    ----------
    noise_multiplier : float
        z of every round.
    source : str
        How z was determined.
    delta : float
        δ.
    rounds : int, optional
        Number of rounds.
    budget : float, optional
        Total ε that may be spent.
    rows_per_person : int
        Maximum number of rows of a person at an agent.
    n_rows, lipschitz : optional
        Rows of an agent, and the clipping bound c1 of a row's gradient. They determine the noise itself.
    cross_check : bool
        Whether to include the RDP and PLD accountants of dp_accounting.
    """

    noise_multiplier: float
    source: str
    delta: float
    rounds: int | None = None
    budget: float | None = None
    rows_per_person: int = 1
    n_rows: int | None = None
    lipschitz: float | None = None
    cross_check: bool = False

    @property
    def mu(self) -> float:
        """Gaussian-DP parameter of all rounds, for one row; of one round if their number is not given."""
        return gaussian_mu([Release(self.noise_multiplier, 1 if self.rounds is None else self.rounds)])

    @property
    def person_epsilon(self) -> float:
        """Exact total ε of a person with the maximum number of rows."""
        return exact_epsilon(group_mu(self.mu, self.rows_per_person), self.delta)

    @property
    def person_paper_epsilon(self) -> float:
        """The paper's bound ε̄ for a person with the maximum number of rows."""
        assert self.rounds is not None
        return paper_epsilon(self._person_noise, self.rounds, self.delta)

    @property
    def _person_noise(self) -> float:
        """With k rows per person, μ is k times as large: the same as 1/k of the noise."""
        return self.noise_multiplier / self.rows_per_person

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence, with ε rounded up."""
        if self.noise_multiplier == 0.0:
            return "Without noise there is no privacy guarantee."
        if self.rounds is not None:
            rounds, epsilon = self.rounds, self.person_epsilon
        else:
            assert self.budget is not None
            rounds, epsilon = affordable_rounds(self._person_noise, self.budget, self.delta), self.budget
        if rounds == 0:
            return "This budget does not allow a single round: use more noise or a larger ε."
        k = self.rows_per_person
        person = "each person with one row" if k == 1 else f"each person with at most {k} rows at an agent"
        return (
            f"Guarantee: ε at most {_rounded_up(epsilon)} at δ = {self.delta:g} for {person}, replace-one neighbours, "
            f"against everyone who sees all messages of {plural(rounds, 'round')}."
        )

    def rendering(self) -> Rendering:
        """Return all values with their sources."""
        body: list[Block] = [Facts(self._noise_facts())]
        if self.rounds is not None:
            body.append(Facts(self._total_facts(self.rounds)))
        if self.budget is not None:
            body.append(Facts(self._budget_facts(self.budget)))
        data = {"rounds": self.rounds, "rows_per_person": self.rows_per_person, "noise_multiplier_from": self.source}
        return Rendering(body=[*body, Paragraph(self.guarantee)], data=data)

    def _noise_facts(self) -> list[Fact]:
        z, delta = self.noise_multiplier, self.delta
        facts = [
            Fact("noise_multiplier", "noise multiplier z", z, _number, self.source),
            Fact("delta", "δ", delta, "g"),
        ]
        if self.n_rows is not None and self.lipschitz is not None:
            sensitivity = mean_sensitivity(self.lipschitz, self.n_rows)
            source = f"z·2·c1/m, c1 = {self.lipschitz:g}, m = {self.n_rows}"
            facts += [
                Fact("rows", None, self.n_rows),
                Fact("lipschitz", None, self.lipschitz),
                Fact("sensitivity", None, sensitivity),
                Fact("noise_std", "noise per coordinate (std)", z * sensitivity, ".4g", source),
            ]
        classical, exact = round_epsilon_from_noise(z, delta), exact_epsilon(gaussian_mu([Release(z)]), delta)
        proven = "√(2 ln(1.25/δ))/z" if classical <= 1.0 else "not proven above 1"
        return [
            *facts,
            Fact("round_epsilon_paper", "ε of one round, paper", classical, _number, proven),
            Fact("round_epsilon_exact", "ε of one round, exact", exact, _number),
        ]

    def _total_facts(self, rounds: int) -> list[Fact]:
        z, delta, k, mu = self.noise_multiplier, self.delta, self.rows_per_person, self.mu
        exact = exact_epsilon(mu, delta)
        facts = [
            Fact("", "rounds", rounds, "d"),
            Fact("epsilon_paper", "total ε, paper's moments bound", paper_epsilon(z, rounds, delta), _number),
            Fact("epsilon_exact", "total ε, exact", exact, _number, f"μ = {_number(mu)}"),
            Fact("mu", None, mu),
        ]
        if self.cross_check:
            releases = [Release(z, rounds)]
            for name, accountant in (("RDP", rdp_epsilon), ("PLD", pld_epsilon)):
                value = accountant(releases, delta)
                label = f"total ε, {name} cross-check"
                facts.append(Fact(f"epsilon_{name.lower()}", label, value, _number, "dp_accounting"))
        person, note = f"person with {plural(k, 'row')}", "total ε"
        paper_label, exact_label = (f"{person}, paper's", f"{person}, exact") if k > 1 else (None, None)
        return [
            *facts,
            Fact("person_epsilon_paper", paper_label, self.person_paper_epsilon, _number, note),
            Fact("person_epsilon_exact", exact_label, self.person_epsilon, _number, note),
        ]

    def _budget_facts(self, budget: float) -> list[Fact]:
        facts = [Fact("epsilon_budget", "budget ε", budget, _number)]
        labels: tuple[tuple[Accountant, str], ...] = (("paper", "paper's bound"), ("exact", "exact"))
        for accountant, label in labels:
            allowed = affordable_rounds(self._person_noise, budget, self.delta, accountant=accountant)
            verdict = ""
            if self.rounds is not None:
                fits = (self.person_paper_epsilon if accountant == "paper" else self.person_epsilon) <= budget
                singular = self.rounds == 1
                verb = ("fits" if singular else "fit") if fits else f"{'does' if singular else 'do'} not fit"
                verdict = f"{plural(self.rounds, 'round')} {verb}"
                facts.append(Fact(f"fits_{accountant}", None, fits))
            facts.append(Fact(f"affordable_rounds_{accountant}", f"rounds allowed, {label}", allowed, "d", verdict))
        return facts


def _number(value: float) -> str:
    """Return four decimals, or four significant digits for very small and large numbers."""
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0.0 or 1e-3 <= abs(value) < 1e7 else f"{value:.4g}"


def _rounded_up(value: float) -> str:
    if math.isinf(value) or value == 0.0:
        return _number(value)
    places = max(4, 3 - math.floor(math.log10(value)))
    # Differences below 1e-9 of a printed digit are rounding errors
    return f"{math.ceil(value * 10.0**places * (1.0 - 1e-9)) / 10.0**places:.{places}f}"
