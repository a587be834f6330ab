"""The rules of the comparison of private ADMM methods can fail, and its jobs are complete and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import private_admm
from benchmarks.private_admm import AT_PAPER_ROUNDS, CLAIMS, EPSILONS, METHODS, Claim, claims_table, jobs, key


def lines(gains: tuple[float, ...]) -> list[dict[str, Any]]:
    """Runs on four splits in which ``dp_admm`` is better than ``admm_pvp`` by these points, with some spread."""
    return [
        {
            "entry": entry,
            "epsilon": epsilon,
            "split": split,
            "test_error": 0.2 + error + 0.001 * (split % 2) * bool(error),
        }
        for epsilon, gain in zip(EPSILONS, gains, strict=True)
        for split in range(4)
        for entry, error in (("dp_admm", 0.0), ("admm_pvp", gain / 100.0))
    ]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((1.0, 1.0, 1.0), "yes"),
        ((1.0, 0.001, 1.0), "at 0.277, 1.02"),
        ((0.001, 0.001, 0.001), "no"),
        ((-1.0, -1.0, -1.0), "no, the opposite"),
        ((-1.0, 0.001, -1.0), "no"),
    ],
)
def test_a_claim_holds_only_if_the_difference_is_clear(monkeypatch, gains, verdict):
    monkeypatch.setattr(private_admm, "CLAIMS", (Claim("us", "better", "dp_admm", "admm_pvp"),))
    *_, row = claims_table(lines(gains)).strip().splitlines()
    assert row.rsplit("|", 2)[1].strip() == verdict


def test_claims_compare_entries_that_run():
    run = METHODS.keys() | AT_PAPER_ROUNDS.keys()
    assert {name for claim in CLAIMS for name in (claim.better, claim.worse)} <= run | {"best ADMM"}
    planned = [key(job) for job in jobs()]
    assert len(planned) == len(set(planned))
    assert run == {job["entry"] for job in jobs() if job["experiment"] == "methods"} - {"centralized"}


def test_pages_have_places_for_all_tables():
    root = Path(private_admm.__file__).parent.parent
    for page in private_admm.PAGES:
        text = (root / page).read_text()
        assert all(text.count(f"<!-- {name} -->") == 1 for name in ("splits", "methods", "claims", "graphs"))
        assert text.count("<!-- end -->") == 4
