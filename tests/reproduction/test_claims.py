"""Claims: comparisons and their tally, which claims are listed, and the pages that list them."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest
from made_up import made_up, runs
from scipy import stats

from reproduction.claims import claims, few_splits, in_short, written_claims
from reproduction.figures import PAPER
from reproduction.report import claims_json, write_all
from reproduction.rules import ClaimVerdict, by_share, decide, paired, tally


@pytest.fixture(scope="module")
def found(paper_results):
    return {claim.key: claim for claim in claims(paper_results)}


def test_paired_differences_have_students_interval():
    rng = np.random.default_rng(0)
    more, less = rng.normal(1.0, 1.0, 10), rng.normal(0.0, 1.0, 10)
    one = paired(pd.Series(more), pd.Series(less))
    interval = stats.ttest_rel(more, less).confidence_interval(0.95)
    assert (one.mean - one.half, one.mean + one.half) == pytest.approx((interval.low, interval.high))
    assert one.clear == (interval.low > 0)


def test_only_common_splits_count_and_one_is_not_enough():
    assert paired(pd.Series({1: 2.0, 2: 3.0, 3: 9.0}), pd.Series({1: 1.0, 2: 1.0, 4: 0.0})).mean == 1.5
    assert paired(pd.Series({1: 2.0}), pd.Series({1: 1.0})) is None


def test_the_rule_for_several_comparisons():
    yes, no, turned = (paired(pd.Series(a), pd.Series([1.0, 1.0])) for a in ([2, 2.01], [0, 2.5], [0, 0.01]))
    assert (yes.clear, no.clear, turned.clear) == (True, False, False)
    assert (yes.reversed, no.reversed, turned.reversed) == (False, False, True)
    assert decide([yes, yes]) is ClaimVerdict.HOLDS
    assert decide([yes, no]) is decide([yes, yes, turned]) is ClaimVerdict.IN_PART
    assert decide([yes, turned]) is decide([yes, no, turned, turned]) is ClaimVerdict.FAILS
    assert decide([no, turned]) is ClaimVerdict.FAILS
    assert decide([]) is by_share([]) is ClaimVerdict.UNMEASURED
    assert tally([yes, no, turned]).startswith("1 of 3 comparisons clear, 1 clearly reversed")


def test_every_claim_is_complete():
    every = [claim for claim, _ in written_claims()]
    assert len({each.key for each in every}) == len(every) == 47
    assert sum(bool(each.quote) for each in every) == 37
    for each in every:
        assert each.statement.endswith(".")
        assert each.rule.endswith(".")
        assert "{" not in each.statement + each.rule + each.place + each.quote
        assert {name.removesuffix("_global") for name in each.figures} <= {*PAPER, "epsilon"}


def test_real_results_decide_every_claim_they_have_runs_for(found):
    missing = {claim.key for claim, _ in written_claims()} - set(found)
    assert missing == {"data", "sampled-dpsgd"}  # not Adult, and no such runs in the small grid
    assert all(claim.evidence and all(claim.evidence) for claim in found.values())
    assert ClaimVerdict.UNMEASURED not in {claim.verdict for claim in found.values()}


def test_the_papers_total_is_recomputed(found):
    assert found["total-epsilon"].verdict is ClaimVerdict.HOLDS
    assert "ε̄ = 0.5009" in found["total-epsilon"].evidence[0]
    assert found["exact-epsilon"].verdict is ClaimVerdict.FAILS
    assert "0.2772" in found["exact-epsilon"].evidence[0]
    assert found["round-epsilon"].verdict is ClaimVerdict.HOLDS


def test_refusals_give_the_programs_reason(found, paper_results):
    reason = paper_results.select("fig3", method="admm_pvp").frame["reason"].iloc[0]
    assert found["refused-l1"].evidence[0] == f"PVP: {reason}"


def test_one_model_of_two_is_in_part_and_the_tally_says_which():
    local = {"train_loss_local": 2.0, "test_error_local": 2.0}
    even = made_up(runs("fig7", "dp_admm"), runs("fig7", "admm_pvp", **local))
    turned = made_up(runs("fig7", "dp_admm"), runs("fig7", "admm_pvp", 0.0, **local))
    one, other = ({c.key: c for c in claims(each)}["beats-pvp"] for each in (even, turned))
    assert one.verdict is ClaimVerdict.IN_PART
    assert one.evidence[0].startswith("Local models: 2 of 2 comparisons clear; global model: 0 of 2")
    assert other.verdict is ClaimVerdict.FAILS
    assert "global model: 0 of 2 comparisons clear, 2 clearly reversed" in other.evidence[0]


def test_two_methods_without_local_models_are_compared_once():
    lines = [runs("fig7", "dp_sgd", level, learning_rate=rate) for rate, level in ((0.1, 1.0), (4.0, 2.0))]
    (claim,) = [claim for claim in claims(made_up(*lines)) if claim.key == "dpsgd-rate-l2"]
    assert claim.evidence[0] == "Global model: 2 of 2 comparisons clear."


def test_only_claims_with_runs_are_listed(paper_results):
    listed = {claim.key for claim in claims(paper_results.select("fig4"))}
    assert listed == {"agents-l2", "round-epsilon", "total-epsilon", "exact-epsilon", "radius-l2"}


def test_results_of_another_grid_have_no_claims(tmp_path):
    """Even where their settings are the paper's."""
    other = made_up(runs("mine", "dp_admm", z=37.8), runs("mine", "centralized"))
    assert claims(other) == []
    assert not [path for path in write_all(other, tmp_path) if "claims" in path.name]


def test_the_papers_claims_are_counted_apart_from_ours(found):
    some = [replace(found["time"], verdict=verdict) for verdict in list(ClaimVerdict)[:4]]
    ours = replace(found["alone"], verdict=ClaimVerdict.FAILS)
    assert in_short([*some, ours, ours]) == (
        "Of 4 claims of the paper, 1 holds, 1 holds in part, 1 does not hold, 1 is not applicable. "
        "Of 2 claims that we added, 2 do not hold."
    )
    assert in_short([ours]) == "Of 1 claim that we added, 1 does not hold."


def test_pages(found, paper_page):
    every = list(found.values())
    read = json.loads(claims_json(every))
    assert [row["key"] for row in read] == list(found)
    assert {row["verdict"] for row in read} <= set(ClaimVerdict)
    assert [row["from_paper"] for row in read] == [bool(row["quote"]) for row in read]
    assert 0 < unescape(paper_page).index("The paper's claims") < paper_page.index("Claims that we added")


def test_few_splits_are_warned_of(found, paper_page):
    every = list(found.values())
    warning = "These results have only 2 random splits, so much is not clear for lack of evidence"
    assert paper_page.count(warning) == 1
    assert "only 1 random split," in few_splits([replace(claim, n_splits=1) for claim in every])
    assert few_splits([replace(claim, n_splits=4) for claim in every])
    assert few_splits([replace(claim, n_splits=5) for claim in every]) == ""
    assert few_splits([]) == ""
