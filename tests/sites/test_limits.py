"""Limits lowered below what enrolled studies were promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpadmm.sites.accounts import broken_promises
from dpadmm.trusted.ledger import Ledger, read_ledger
from dpadmm.trusted.policy import MaskingLimits, Policy
from dpadmm.trusted.unit import PrivacyUnit

POLICY = Policy(
    epsilon=2.0,
    delta=1e-5,
    methods=frozenset({"dp_admm", "dp_sgd"}),
    losses=frozenset({"logistic"}),
    max_rounds=100,
    min_rows=50,
)
PLAN = [{"statistic": "gradient", "noise_multiplier": 10.0, "rounds": 3}]
ABOUT = {
    "name": "flu",
    "method": "dp_admm",
    "loss": "logistic",
    "plan": PLAN,
    "delta": 1e-5,
    "n_rows": 60,
}
STUDY = "a1" * 32


@pytest.fixture
def folder(tmp_path):
    with Ledger.open(tmp_path, cap=POLICY.cap, create=True) as ledger:
        ledger.reserve(STUDY, 0.03, about={**ABOUT, "rows_per_person": 1})
        ledger.spend(STUDY, 1, digest="0" * 64, mu_squared=0.01, upload=b"")
    return tmp_path


def test_limits_that_keep_every_promise(folder):
    assert broken_promises(POLICY, read_ledger(folder)) == []


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (
            {"methods": frozenset({"dp_sgd"})},
            "does not allow method dp_admm (allowed: dp_sgd)",
        ),
        (
            {"losses": frozenset({"hinge"})},
            "does not allow loss logistic (allowed: hinge)",
        ),
        ({"max_rounds": 2}, "too many rounds: the study has 3, the owner allows 2"),
        ({"min_rows": 61}, "too few rows: the table has 60, the owner requires 61"),
        ({"unit": PrivacyUnit(2)}, "it was enrolled with 1 rows per person, and person.rows is 2"),
        ({"epsilon": 0.3}, "your limit, ε 0.3000 at δ = 1e-05, is below what was promised"),
    ],
)
def test_every_lowered_limit_is_reported(folder, limits, complaint):
    (told,) = broken_promises(replace(POLICY, **limits), read_ledger(folder))
    assert complaint in told
    assert "'flu'" in told
    assert told.endswith("study")


def test_lowered_limits_of_secure_aggregation_are_reported(tmp_path):
    masking = {"min_honest_sites": 4, "quorum": 5, "max_rows_per_site": 99, "roster": [["a", "00" * 32]]}
    allowed = replace(POLICY, masking=MaskingLimits(4.0, 2, 1))
    with Ledger.open(tmp_path, cap=allowed.cap, collusion_cap=allowed.collusion_cap, create=True) as ledger:
        ledger.reserve(STUDY, 0.03, about={**ABOUT, "rows_per_person": 1, "masking": masking}, shares=4)
    assert broken_promises(allowed, read_ledger(tmp_path)) == []
    for limits, complaint in (
        (None, "does not allow secure aggregation"),
        (MaskingLimits(4.0, 5, 1), "too few honest sites assumed: the study has 4, the owner requires 5"),
        (MaskingLimits(4.0, 2, 2), "too few colluding sites tolerated: the study has 1, the owner requires 2"),
    ):
        (told,) = broken_promises(replace(POLICY, masking=limits), read_ledger(tmp_path))
        assert complaint in told
    low = replace(POLICY, epsilon=0.9, masking=MaskingLimits(0.9, 2, 1))
    (told,) = broken_promises(low, read_ledger(tmp_path))
    assert "your limit if all other sites collude, ε 0.9000 at δ = 1e-05, is below what was promised" in told


def test_a_closed_study_is_not_reported(folder):
    low = replace(POLICY, epsilon=0.001, max_rounds=1)
    with Ledger.open(folder, cap=POLICY.cap) as ledger:
        for round in (2, 3):
            ledger.spend(STUDY, round, digest="0" * 64, mu_squared=0.01, upload=b"")
    assert broken_promises(low, read_ledger(folder)) == []
    with Ledger.open(folder, cap=POLICY.cap) as ledger:
        ledger.close_study(STUDY)
    assert broken_promises(low, read_ledger(folder)) == []
