"""Claims: comparisons and their summary, the list of claims, and the pages that contain them."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_results import results_of, runs

from reproduction.claims import claims, few_splits_warning, read_claims, summary_of
from reproduction.figures import PAPER
from reproduction.report import claims_json, write_all
from reproduction.rules import ClaimVerdict, by_share, decide, paired, tally


@pytest.fixture(scope="module")
def verdicts(paper_results):
    return {claim.key: claim for claim in claims(paper_results)}


def test_paired_differences_use_student_intervals():
    rng = np.random.default_rng(0)
    more, less = rng.normal(1.0, 1.0, 10), rng.normal(0.0, 1.0, 10)
    one = paired(pd.Series(more), pd.Series(less))
    interval = stats.ttest_rel(more, less).confidence_interval(0.95)
    assert (one.mean - one.half, one.mean + one.half) == pytest.approx((interval.low, interval.high))
    assert one.clear == (interval.low > 0)


def test_comparisons_use_common_splits_and_need_at_least_two():
    assert paired(pd.Series({1: 2.0, 2: 3.0, 3: 9.0}), pd.Series({1: 1.0, 2: 1.0, 4: 0.0})).mean == 1.5
    assert paired(pd.Series({1: 2.0}), pd.Series({1: 1.0})) is None


def test_summary_of_several_comparisons():
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
    every = [claim for claim, _ in read_claims()]
    assert len({item.key for item in every}) == len(every) == 47
    assert sum(bool(item.quote) for item in every) == 37
    for item in every:
        assert item.statement.endswith(".")
        assert item.rule.endswith(".")
        assert "{" not in item.statement + item.rule + item.place + item.quote
        assert {name.removesuffix("_global") for name in item.figures} <= {*PAPER, "epsilon"}


def test_results_decide_every_claim_with_runs(verdicts):
    missing = {claim.key for claim, _ in read_claims()} - set(verdicts)
    assert missing == {"data", "sampled-dpsgd"}  # not Adult, and the small grid has no such runs
    assert all(claim.evidence and all(claim.evidence) for claim in verdicts.values())
    assert ClaimVerdict.UNMEASURED not in {claim.verdict for claim in verdicts.values()}


def test_the_papers_total_is_recomputed(verdicts):
    assert verdicts["total-epsilon"].verdict is ClaimVerdict.HOLDS
    assert "ε̄ = 0.5009" in verdicts["total-epsilon"].evidence[0]
    assert verdicts["exact-epsilon"].verdict is ClaimVerdict.FAILS
    assert "0.2772" in verdicts["exact-epsilon"].evidence[0]
    assert verdicts["round-epsilon"].verdict is ClaimVerdict.HOLDS


def test_refusals_contain_the_programs_reason(verdicts, paper_results):
    reason = paper_results.select("fig3", method="admm_pvp").frame["reason"].iloc[0]
    assert verdicts["refused-l1"].evidence[0] == f"PVP: {reason}"


def test_claim_on_one_of_two_models_is_reproduced_in_part():
    local = {"train_loss_local": 2.0, "test_error_local": 2.0}
    even = results_of(runs("fig7", "dp_admm"), runs("fig7", "admm_pvp", **local))
    turned = results_of(runs("fig7", "dp_admm"), runs("fig7", "admm_pvp", 0.0, **local))
    one, other = ({c.key: c for c in claims(item)}["beats-pvp"] for item in (even, turned))
    assert one.verdict is ClaimVerdict.IN_PART
    assert one.evidence[0].startswith("Local models: 2 of 2 comparisons clear; global model: 0 of 2")
    assert other.verdict is ClaimVerdict.FAILS
    assert "global model: 0 of 2 comparisons clear, 2 clearly reversed" in other.evidence[0]


def test_methods_without_local_models_are_compared_once():
    lines = [runs("fig7", "dp_sgd", level, learning_rate=rate) for rate, level in ((0.1, 1.0), (4.0, 2.0))]
    (claim,) = [claim for claim in claims(results_of(*lines)) if claim.key == "dpsgd-rate-l2"]
    assert claim.evidence[0] == "Global model: 2 of 2 comparisons clear."


def test_claims_without_runs_are_not_listed(paper_results):
    listed = {claim.key for claim in claims(paper_results.select("fig4"))}
    assert listed == {"agents-l2", "round-epsilon", "total-epsilon", "exact-epsilon", "radius-l2"}


def test_results_of_another_grid_have_no_claims(tmp_path):
    """This holds even if their settings are the paper's."""
    other = results_of(runs("mine", "dp_admm", z=37.8), runs("mine", "centralized"))
    assert claims(other) == []
    assert not [path for path in write_all(other, tmp_path) if "claims" in path.name]


def test_claims_of_the_paper_are_counted_separately(verdicts):
    some = [replace(verdicts["time"], verdict=verdict) for verdict in list(ClaimVerdict)[:4]]
    ours = replace(verdicts["alone"], verdict=ClaimVerdict.FAILS)
    assert summary_of([*some, ours, ours]) == (
        "Of 4 claims of the paper, 1 holds, 1 holds in part, 1 does not hold, 1 is not applicable. "
        "Of 2 claims that we added, 2 do not hold."
    )
    assert summary_of([ours]) == "Of 1 claim that we added, 1 does not hold."


def test_pages_list_all_claims(verdicts, paper_page):
    every = list(verdicts.values())
    read = json.loads(claims_json(every))
    assert [row["key"] for row in read] == list(verdicts)
    assert {row["verdict"] for row in read} <= set(ClaimVerdict)
    assert [row["from_paper"] for row in read] == [bool(row["quote"]) for row in read]
    assert 0 < unescape(paper_page).index("The paper's claims") < paper_page.index("Claims that we added")


def test_pages_warn_about_few_splits(verdicts, paper_page):
    every = list(verdicts.values())
    warning = "These results have only 2 random splits, so some claims are unclear for lack of evidence"
    assert paper_page.count(warning) == 1
    assert "only 1 random split," in few_splits_warning([replace(claim, n_splits=1) for claim in every])
    assert few_splits_warning([replace(claim, n_splits=4) for claim in every])
    assert few_splits_warning([replace(claim, n_splits=5) for claim in every]) == ""
    assert few_splits_warning([]) == ""
