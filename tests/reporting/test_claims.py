"""Claims are decided by the numbers: rules on known differences, verdicts that turn when the results do."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpadmm.reporting.claims import Verdict, claims, claims_json, claims_markdown, few_splits
from dpadmm.reporting.claims.base import by_share, decide, paired, tally
from dpadmm.reporting.claims.choices import choice_claims
from dpadmm.reporting.claims.cost import cost_claims
from dpadmm.reporting.claims.methods import method_claims
from dpadmm.reporting.claims.same_total import same_total_claims
from dpadmm.reporting.claims.trends import trend_claims
from paper_runs import tampered


def by_key(results, some=claims):
    return {claim.key: claim for claim in some(results)}


@pytest.fixture(scope="module")
def found(paper_results):
    return by_key(paper_results)


def test_paired_differences_have_students_interval():
    rng = np.random.default_rng(0)
    more, less = rng.normal(1.0, 1.0, 10), rng.normal(0.0, 1.0, 10)
    one = paired(dict(enumerate(more)), dict(enumerate(less)))
    interval = stats.ttest_rel(more, less).confidence_interval(0.95)
    assert (one.mean - one.half, one.mean + one.half) == pytest.approx((interval.low, interval.high))
    assert one.clear == (interval.low > 0)


def test_only_common_splits_count_and_one_is_not_enough():
    assert paired({1: 2.0, 2: 3.0, 3: 9.0}, {1: 1.0, 2: 1.0, 4: 0.0}).mean == 1.5
    assert paired({1: 2.0}, {1: 1.0}) is None


def test_the_rule():
    yes, no, turned = (paired(dict(enumerate(a)), {0: 1.0, 1: 1.0}) for a in ([2, 2.01], [0, 2.5], [0, 0.01]))
    assert (yes.clear, no.clear, turned.clear) == (True, False, False)
    assert (yes.reversed, no.reversed, turned.reversed) == (False, False, True)
    assert decide([yes, yes]) is Verdict.HOLDS
    assert decide([yes, no]) is decide([yes, yes, turned]) is Verdict.IN_PART
    assert decide([yes, turned]) is decide([yes, no, turned, turned]) is Verdict.FAILS
    assert decide([no, turned]) is Verdict.FAILS
    assert decide([]) is by_share([]) is Verdict.UNMEASURED
    assert tally([yes, no, turned]).startswith("1 of 3 comparisons clear, 1 clearly the other way round")


def test_every_claim_is_complete_and_computed(found):
    assert len(found) >= 30
    for claim in found.values():
        assert claim.statement.endswith(".")
        assert claim.rule.startswith(("Holds", "Loss", "The", "Its", "Their", "DPSGD", "PVP", "DVP"))
        assert claim.evidence
        assert all(claim.evidence)
    unmeasured = {key for key, claim in found.items() if claim.verdict is Verdict.UNMEASURED}
    assert unmeasured == {"data", "sampled-dpsgd"}  # not Adult, and no such runs in the small grid


def test_the_papers_total_is_recomputed(found):
    assert found["total-epsilon"].verdict is Verdict.HOLDS
    assert "ε̄ = 0.5009" in found["total-epsilon"].evidence[0]
    assert found["exact-epsilon"].verdict is Verdict.FAILS
    assert "0.2772" in found["exact-epsilon"].evidence[0]


def test_refusals_give_the_programs_reason(found, paper_results):
    claim = found["refused-l1"]
    assert claim.verdict is Verdict.HOLDS
    reason = paper_results.select("fig3", method="admm_pvp").column("reason")[0]
    assert claim.evidence[0] == f"PVP: {reason}"


@pytest.mark.parametrize(
    ("key", "equals"),
    [
        ("beats-dpsgd-l2", {"method": "dp_sgd", "learning_rate": 0.1, "regularizer": "l2"}),
        ("beats-dpsgd-tuned-l1", {"method": "dp_sgd", "learning_rate": 4.0, "regularizer": "l1"}),
        ("beats-pvp", {"method": "admm_pvp"}),
        ("beats-dvp", {"method": "admm_dvp"}),
        ("poor-pvp", {"method": "admm_pvp"}),
        ("alone", {"method": "output_perturbation"}),
    ],
)
def test_verdicts_turn_with_the_results(paper_results, key, equals):
    """The other method far worse: the claim holds; far better: it does not."""
    measures = ("train_loss_global", "train_loss_local", "test_error_global", "test_error_local")
    worse = better = paper_results
    for column in measures:
        worse = tampered(worse, column, lambda values: values * 0 + 1e3, **equals)
        better = tampered(better, column, lambda values: values * 0 - 1e3, **equals)
    some = same_total_claims if key == "alone" else method_claims
    assert by_key(worse, some)[key].verdict is Verdict.HOLDS
    assert by_key(better, some)[key].verdict is Verdict.FAILS


def test_one_model_of_two_is_in_part(paper_results):
    """Local models clearly worse and the global model even: in part; the global model clearly better: not."""
    even = turned = paper_results
    for column in ("train_loss_local", "test_error_local", "train_loss_global", "test_error_global"):
        even = tampered(even, column, lambda v: v * 0 + 1.0, method="dp_admm")
        turned = tampered(turned, column, lambda v: v * 0 + 1.0, method="dp_admm")
        local = column.endswith("local")
        even = tampered(even, column, lambda v, to=2.0 if local else 1.0: v * 0 + to, method="admm_pvp")
        turned = tampered(turned, column, lambda v, to=2.0 if local else 0.0: v * 0 + to, method="admm_pvp")
    claim = by_key(even, method_claims)["beats-pvp"]
    assert claim.verdict is Verdict.IN_PART
    assert claim.evidence[0].startswith("Local models: 4 of 4 comparisons clear; global model: 0 of 4")
    claim = by_key(turned, method_claims)["beats-pvp"]
    assert claim.verdict is Verdict.FAILS
    assert "global model: 0 of 4 comparisons clear, 4 clearly the other way round" in claim.evidence[0]


@pytest.mark.parametrize(
    ("times", "verdict"), [(100.0, "holds"), (2.0, "holds in part"), (0.5, "does not hold")]
)
def test_time_is_judged_by_the_ratio(paper_results, times, verdict):
    even = tampered(paper_results, "seconds", np.ones_like, timed=True)
    for method in ("admm", "admm_pvp"):
        even = tampered(even, "seconds", lambda values: values * times, timed=True, method=method)
    claim = by_key(even, cost_claims)["time"]
    assert claim.verdict == verdict
    assert f"{times:.1f} times DP-ADMM's (paper: 12.6)" in claim.evidence[0]


def test_a_bound_that_is_crossed_once_does_not_hold(paper_results, found):
    assert found["bound-l2"].verdict is Verdict.HOLDS
    low = tampered(paper_results, "bound", lambda values: values * 0 - 1e9, round=60, regularizer="l2")
    assert by_key(low, cost_claims)["bound-l2"].verdict is Verdict.FAILS
    assert by_key(low, cost_claims)["bound-l1"].verdict == found["bound-l1"].verdict


def test_constants_are_judged_against_the_papers(paper_results):
    right = tampered(paper_results, "weight_norm_global", lambda v: v * 0 + 90.0, method="centralized")
    assert by_key(right, choice_claims)["radius-l2"].verdict is Verdict.HOLDS
    assert by_key(right, choice_claims)["radius-l1"].verdict is Verdict.FAILS
    flat = tampered(paper_results, "test_error_global", lambda v: v * 0 + 0.2, method="dp_admm")
    assert by_key(flat, choice_claims)["chosen-radius"].verdict is Verdict.HOLDS
    steep = tampered(flat, "test_error_global", lambda v: v + 0.011, method="dp_admm", weight_radius=5.0)
    assert by_key(steep, choice_claims)["chosen-radius"].verdict is Verdict.FAILS
    assert by_key(steep, choice_claims)["chosen-lambda"].verdict is Verdict.HOLDS


def test_what_is_missing_is_not_measured(paper_results):
    only = by_key(paper_results.select("fig4"))
    measured = {key for key, claim in only.items() if claim.verdict is not Verdict.UNMEASURED}
    assert measured == {"agents-l2", "total-epsilon", "exact-epsilon", "radius-l2"}
    one_split = by_key(paper_results.select(seed=1), trend_claims)
    assert one_split["agents-l2"].verdict is Verdict.UNMEASURED


def test_pages(paper_results):
    every = claims(paper_results)
    read = json.loads(claims_json(every))
    assert [row["key"] for row in read] == [claim.key for claim in every]
    assert {row["verdict"] for row in read} <= set(Verdict)
    page = claims_markdown(every)
    assert page.count("\n### ") == len(every)
    assert page.index("## What the paper says") < page.index("## What the paper leaves out")


def test_few_splits_are_warned_of(paper_results):
    every = claims(paper_results)
    warning = "These results have only 2 random splits, so much is not clear for lack of evidence"
    assert claims_markdown(every).count(warning) == 1
    assert "only 1 random split," in few_splits(claims(paper_results.select("fig4", seed=1)))
    assert few_splits([replace(claim, n_splits=4) for claim in every])
    assert few_splits([replace(claim, n_splits=5) for claim in every]) == ""
    assert few_splits([]) == ""


@pytest.mark.parametrize(("norm", "said"), [(1e6, True), (1e-6, False)])
def test_a_theorem_whose_condition_does_not_hold_is_said_to_promise_nothing(paper_results, norm, said):
    other = tampered(
        paper_results, "weight_norm_global", lambda values: values * 0 + norm, method="centralized"
    )
    evidence = " ".join(by_key(other, cost_claims)["bound-l2"].evidence)
    assert ("promises nothing" in evidence) == said
