"""Studies chosen adaptively from earlier releases: the sum of all μ² stays within the owner's cap."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from guards import POLICY, STUDY, D, guarded, memory_folder
from looping import case

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import RefusalError
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.unit import PrivacyUnit

MULTIPLIERS, STEPS = (4.0, 6.0, 9.0, 14.0, 40.0), 30


class Analyst:
    """Choose every study, point and ending from earlier releases, and add up the cost of all answers."""

    def __init__(self, seed: int, rows_per_person: int) -> None:
        self.seen, self.k = str(seed).encode(), rows_per_person
        self.spent, self.codes = Fraction(0), set[str]()
        self.open: list[tuple[Study, int]] = []
        """Studies, and the last round that was answered."""
        self.number = 0

    def session(self, folder: Path, policy: Policy, steps: int) -> None:
        with guarded(folder, None, policy) as guard:
            for study, _ in self.open:
                guard.enrol(study)
            for _ in range(steps):
                try:
                    self._act(guard, random.Random(sha256(self.seen).digest()))
                except RefusalError as refusal:
                    self.codes.add(refusal.code)
                self.seen += b"."
        assert float(read_ledger(folder).spent) == pytest.approx(float(self.spent), rel=1e-12)

    def _act(self, guard: Guard, chance: random.Random) -> None:
        action = chance.choice(["enrol", "answer", "answer", "answer", "leave"])
        if action == "enrol" or not self.open:
            self.number += 1
            asked = {"noise_multiplier": chance.choice(MULTIPLIERS), "n_rounds": chance.randint(1, 6)}
            study = replace(STUDY, name=f"study {self.number}", training=STUDY.training.with_changes(**asked))
            guard.enrol(study)
            self.open.append((study, 0))
            return
        place = chance.randrange(len(self.open))
        study, last = self.open[place]
        if action == "leave":
            guard.leave(study.hash)
            del self.open[place]
            return
        point = np.array([[chance.gauss(0.0, 3.0)] for _ in range(D)])
        self.seen += guard.answer(study.hash, last + 1, point).tobytes()
        self.open[place] = study, last + 1
        self.spent += (Fraction(self.k) / Fraction(study.terms.plan.at(last + 1).noise_multiplier)) ** 2


@pytest.mark.parametrize("rows_per_person", [1, 2])
def test_adaptive_studies_stay_within_the_cap(
    rows_per_person: int,
) -> None:
    """The filter theorem requires this. The owner may lower the limit and raise it to at most its first value."""
    policy = replace(POLICY, epsilon=3.0, unit=PrivacyUnit(rows_per_person))
    lower = replace(policy, epsilon=1.0)
    codes, largest = set[str](), 0.0
    for seed in range(5):
        with case(seed), memory_folder() as folder:
            analyst = Analyst(seed, rows_per_person)
            for limits in (policy, lower, policy):
                before = analyst.spent
                analyst.session(folder, limits, STEPS)
                if limits is lower:
                    assert analyst.spent <= max(before, Fraction(lower.cap))
                assert float(analyst.spent) <= policy.cap * (1.0 + 1e-15)
                assert exact_epsilon(math.sqrt(analyst.spent), policy.delta) <= policy.epsilon
            codes |= analyst.codes
            largest = max(largest, float(analyst.spent) / policy.cap)
    assert "budget-cap" in codes, "the analysts asked for more"
    assert largest > 0.7, "and got most of it"
