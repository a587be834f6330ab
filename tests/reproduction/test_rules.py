"""Every rule can reach every verdict, on synthetic results."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
from looping import case
from synthetic_results import results_of, runs

from reproduction.claims import read_claims

YES, PART, NO, MOOT = "holds", "holds in part", "does not hold", "not applicable"


JUDGES = {claim.key: judge for claim, judge in read_claims()}


def verdict(results, key):
    """Return the verdict on a claim; None if the results have no runs for it."""
    findings = JUDGES[key](results)
    return None if findings is None else str(findings.verdict)


def steps(experiment, column, values, levels, **more):
    """Return lines of DP-ADMM at some values of a column, with a level for each."""
    pairs = zip(values, levels, strict=True)
    return [runs(experiment, "dp_admm", level, **{column: value}, **more) for value, level in pairs]


FALLING = [((3, 2, 1), YES), ((3, 2, 2), PART), ((2, 2, 2), NO), ((1, 2, 2), NO)]
TRENDS = {
    "agents": ("n_agents", (1, 10, 100), [((1, 2, 3), YES), ((1, 2, 2), PART), ((3, 2, 1), NO)]),
    "convergence-epsilon": ("round_epsilon", (0.05, 0.1, 0.2), FALLING),
    "convergence-delta": ("delta", (1e-5, 1e-4, 1e-3), FALLING),
    "utility-epsilon": ("round_epsilon", (0.05, 0.1, 0.2), FALLING),
    "utility-delta": ("delta", (1e-5, 1e-4, 1e-3), FALLING),
}
FIGURES = {
    "agents": ("fig1", "fig4"),
    "convergence": ("fig2", "fig6"),
    "utility": ("fig3", "fig7"),
}


def test_a_trend_is_judged_at_every_step():
    for key, kind in product(TRENDS, ["l1", "l2"]):
        with case(key, kind):
            column, values, cases = TRENDS[key]
            experiment = FIGURES[key.split("-")[0]][kind == "l2"]
            for levels, expected in cases:
                assert verdict(results_of(*steps(experiment, column, values, levels)), f"{key}-{kind}") == expected, (
                    levels
                )
            assert verdict(results_of(*steps(experiment, column, values[:1], [1])), f"{key}-{kind}") is None


def sgd(experiment="fig7", level=1.0, rate=0.1, **more):
    return runs(experiment, "dp_sgd", level, learning_rate=rate, **more)


tuned = partial(sgd, rate=4.0)


def at_two_budgets(low, high, experiment="fig7"):
    """Return lines of methods (or "sgd", "tuned") with levels at ε = 0.05 (``low``) and ε = 0.2 (``high``)."""
    out = []
    for epsilon, levels in ((0.05, low), (0.2, high)):
        for name, level in levels.items():
            make = {"sgd": sgd, "tuned": tuned}.get(name)
            more = {"round_epsilon": epsilon}
            out.append(make(experiment, level, **more) if make else runs(experiment, name, level, **more))
    return results_of(*out)


def test_one_method_is_compared_with_another_at_every_budget():
    for key, worse, better, experiment in [
        ("beats-dpsgd-l1", "sgd", "dp_admm", "fig3"),
        ("beats-dpsgd-l2", "sgd", "dp_admm", "fig7"),
        ("beats-dpsgd-tuned-l1", "tuned", "dp_admm", "fig3"),
        ("beats-dpsgd-tuned-l2", "tuned", "dp_admm", "fig7"),
        ("dpsgd-rate-l1", "tuned", "sgd", "fig3"),
        ("dpsgd-rate-l2", "tuned", "sgd", "fig7"),
        ("beats-pvp", "admm_pvp", "dp_admm", "fig7"),
        ("beats-dvp", "admm_dvp", "dp_admm", "fig7"),
    ]:
        with case(key, worse, better, experiment):
            for low, high, expected in ((2, 2, YES), (2, 1, PART), (0.5, 0.5, NO), (2, 0.5, NO), (1, 1, NO)):
                results = at_two_budgets({worse: low, better: 1}, {worse: high, better: 1}, experiment)
                assert verdict(results, key) == expected, (low, high)
            assert verdict(at_two_budgets({better: 1}, {better: 1}, experiment), key) is None


def test_poor_performance_is_worse_than_other_private_methods():
    for (ours, sgd_level, expected), method in product(
        [(1, 1, YES), (1, 2, PART), (1, 3, NO), (3, 3, NO)], ["admm_pvp", "admm_dvp"]
    ):
        with case(ours, sgd_level, expected, method):
            levels = {method: 2, "dp_admm": ours, "sgd": sgd_level}
            results = at_two_budgets({**levels, "admm": 0.01}, {**levels, "admm": 0.01})  # ADMM does not affect it
            assert verdict(results, f"poor-{method[-3:]}") == expected


def test_resilience_compares_the_cost_of_a_smaller_epsilon():
    """Levels are at the small ε. At the large ε all are 1."""
    for levels, resilient, sensitive in [
        ({"dp_admm": 2, "admm_pvp": 3, "admm_dvp": 3, "sgd": 1.1}, YES, YES),
        ({"dp_admm": 1.1, "admm_pvp": 3, "admm_dvp": 3, "sgd": 1.1}, PART, YES),
        ({"dp_admm": 3, "admm_pvp": 3, "admm_dvp": 3, "sgd": 1.1}, YES, PART),
        ({"dp_admm": 2, "admm_pvp": 1.1, "admm_dvp": 1.1, "sgd": 3}, NO, NO),
    ]:
        with case(levels, resilient, sensitive):
            results = at_two_budgets(levels, dict.fromkeys(levels, 1))
            assert verdict(results, "dpsgd-resilient") == resilient
            assert verdict(results, "admm-sensitive") == sensitive
            one_budget = results_of(*(runs("fig7", name) for name in ("dp_admm", "admm_pvp")), sgd())
            assert verdict(one_budget, "dpsgd-resilient") is None


def slow(k):
    return 1.0 - k / 200


def fast(k):
    return 0.5 + 0.5 * (k == 1)


def test_slow_is_slower_than_the_other_methods():
    for own, others, expected in [
        (slow, (fast, fast, fast, fast), YES),
        (slow, (fast, fast, fast, slow), PART),
        (fast, (slow, slow, slow, slow), NO),
        (slow, (slow, slow, slow, slow), NO),
    ]:
        with case(own, others, expected):
            methods = ("admm", "dp_admm", "admm_pvp", "admm_dvp")
            results = results_of(sgd(level=own), *(runs("fig7", *pair) for pair in zip(methods, others, strict=True)))
            assert verdict(results, "dpsgd-slow") == expected
            assert verdict(results_of(sgd(level=own)), "dpsgd-slow") is None


def test_faster_than_dpsgd():
    for own, ours, expected in [(slow, fast, YES), (fast, slow, NO), (slow, slow, NO)]:
        with case(own, ours, expected):
            assert (
                verdict(results_of(sgd("fig3", own), runs("fig3", "dp_admm", ours)), "faster-than-dpsgd-l1") == expected
            )


def test_faster_than_dpsgd_at_one_of_two_budgets_is_reproduced_in_part():
    lines = [sgd("fig3", slow, round_epsilon=value) for value in (0.05, 0.1)]
    lines += [runs("fig3", "dp_admm", shape, round_epsilon=value) for value, shape in ((0.05, fast), (0.1, slow))]
    assert verdict(results_of(*lines), "faster-than-dpsgd-l1") == PART


def test_admm_is_fast_if_it_overtakes_the_others_early():
    for ours, sgd_level, expected in [(0.6, 0.6, YES), (0.6, 0.4, PART), (0.4, 0.4, NO)]:
        with case(ours, sgd_level, expected):
            results = results_of(runs("fig7", "admm", fast), runs("fig7", "dp_admm", ours), sgd(level=sgd_level))
            assert verdict(results, "admm-fast") == expected
            late = results_of(runs("fig7", "admm", slow), runs("fig7", "dp_admm", 0.6), sgd(level=0.6))
            assert verdict(late, "admm-fast") == NO


@pytest.mark.parametrize(("objective", "expected"), [(1.005, YES), (1.02, NO)])
def test_admm_has_converged_within_one_percent(objective, expected):
    results = results_of(runs("fig7", "admm", objective), runs("fig7", "centralized"))
    assert verdict(results, "admm-arrived") == expected


def test_inapplicable_methods_are_refused():
    for pvp, dvp, expected in [("refused", "refused", YES), ("refused", "done", PART), ("done", "done", NO)]:
        with case(pvp, dvp, expected):
            lines = [
                runs("fig3", method, status=status, reason="kinks")
                for method, status in (("admm_pvp", pvp), ("admm_dvp", dvp))
            ]
            assert verdict(results_of(*lines), "refused-l1") == expected


def test_much_less_time_is_at_most_a_fifth():
    for admm, pvp, expected in [(9.0, 5.0, YES), (9.0, 4.0, PART), (1.5, 0.5, PART), (0.5, 0.9, NO)]:
        with case(admm, pvp, expected):
            seconds = {"dp_admm": 1.0, "admm": admm, "admm_pvp": pvp}
            lines = [runs("table3", name, timed=True, seconds=value) for name, value in seconds.items()]
            assert verdict(results_of(*lines), "time") == expected


def test_one_round_is_private_under_theorem_1():
    for settings, expected in [
        ([{"z": 37.8}], YES),
        ([{"z": 37.8}, {"z": 2.0, "delta": 1e-4}], PART),
        ([{"z": 2.0}], NO),
        ([{"z": 37.8, "delta": 0.05}], MOOT),
        ([{"z": 37.8, "round_epsilon": 2.0}], MOOT),
    ]:
        with case(settings, expected):
            assert (
                verdict(results_of(*(runs("fig4", "dp_admm", **setting) for setting in settings)), "round-epsilon")
                == expected
            )


def test_totals_are_compared_with_the_paper_and_with_exact_values():
    for totals, matches, tight in [
        (((0.50, 0.50086), (1.019, 1.01932)), YES, YES),
        (((0.27, 0.50086), (1.1, 1.1)), PART, PART),
        (((0.27, 0.6), (0.6, 1.1)), NO, NO),
    ]:
        with case(totals, matches, tight):
            lines = [
                runs("fig1", "dp_admm", round_epsilon=value, total_epsilon=exact, total_paper_epsilon=paper)
                for value, (exact, paper) in zip((0.05, 0.1), totals, strict=True)
            ]
            assert verdict(results_of(*lines), "total-epsilon") == matches
            assert verdict(results_of(*lines), "exact-epsilon") == tight


def bounds(kind="l2", shapes=((lambda k: 9 / k**0.5),), bound=10.0, **more):
    """Return gaps of these shapes, one per ε, to an optimum of 0 with norm 80."""
    budgets = (0.05, 0.1)[: len(shapes)]
    common = {"regularizer": kind, "weight_radius": 89.0, **more}
    lines = [
        runs("bounds", "dp_admm", shape, round_epsilon=value, bound=bound, **common)
        for value, shape in zip(budgets, shapes, strict=True)
    ]
    optimum = runs("bounds", "centralized", 0.0, **{**common, "weight_norm_global": 80.0})
    return results_of(*lines, optimum)


def high(k):
    return 99.0


def low(k):
    return 1.0


def test_bound_is_respected_or_exceeded():
    for (shapes, expected), kind in product([((low, low), YES), ((low, high), PART), ((high, high), NO)], ["l1", "l2"]):
        with case(shapes, expected, kind):
            assert verdict(bounds(kind, shapes), f"bound-{kind}") == expected


def test_theorem_with_an_unmet_premise_is_not_applicable():
    for more, says in [
        ({"delta": 0.05}, "δ ≤ 0.01, but δ = 0.05"),
        ({"weight_radius": 23.0}, "c_w = 23 and the norm is 80.0"),
        ({"loss": "hinge"}, "hinge is not smooth"),
        ({"schedule": "constant", "bound": None}, "constant step sizes"),
        ({"participation": 0.5, "bound": None}, "a participation of 0.5"),
    ]:
        with case(more, says):
            results = bounds(shapes=(high,), **more)
            assert verdict(results, "bound-l2") == MOOT
            assert says in JUDGES["bound-l2"](results).sentences[0]
            if "loss" in more:  # Theorem 2 does not require a smooth loss
                assert verdict(bounds("l1", (low,), **more), "bound-l1") == YES


def test_the_rate_is_the_slope_of_the_gap():
    for (powers, expected), kind in product(
        [((0.5, 0.9), YES), ((0.5, 0.45), PART), ((0.5, 0.2), NO), ((0.0, 0.3), NO)], ["l1", "l2"]
    ):
        with case(powers, expected, kind):
            results = bounds(kind, tuple((lambda k, p=p: 9.0 / k**p) for p in powers))
            assert verdict(results, f"rate-{kind}") == expected


def test_the_schedule_is_compared_with_constant_steps():
    for (levels, expected), kind in product(
        [((2, 2), YES), ((2, 1), PART), ((2, 0.5), NO), ((1, 1), NO)], ["l1", "l2"]
    ):
        with case(levels, expected, kind):
            ours = runs("schedule", "dp_admm", regularizer=kind)
            constants = [
                runs("schedule", "dp_admm", level, regularizer=kind, schedule="constant", step_size=size)
                for size, level in zip((0.5, 4.0), levels, strict=True)
            ]
            assert verdict(results_of(ours, *constants), f"schedule-{kind}") == expected
            assert verdict(results_of(ours), f"schedule-{kind}") is None


@pytest.mark.parametrize(("rows", "expected"), [(45222, YES), (48842, NO)])
def test_data_have_the_shape_of_the_paper(rows, expected):
    adult = {"name": "adult", "rows": rows, "features": 104}
    assert verdict(results_of(runs("fig4", "dp_admm"), data=adult), "data") == expected
    assert verdict(results_of(runs("fig4", "dp_admm")), "data") is None


def test_the_radius_is_the_norm_of_the_optimum():
    for kind, norm, expected in [("l1", 24.0, YES), ("l1", 90.0, NO), ("l2", 90.0, YES)]:
        with case(kind, norm, expected):
            results = results_of(runs("fig4", "centralized", regularizer=kind, weight_norm_global=norm))
            assert verdict(results, f"radius-{kind}") == expected


def test_lambda_is_compared_with_all_others_on_held_out_rows():
    """At the paper's λ the loss is 1 and the error 0.2."""
    for loss, error, expected in [(1.1, 0.3, YES), (0.9, 0.3, PART), (0.9, 0.1, NO)]:
        with case(loss, error, expected):
            lines = [
                runs("lambda", "centralized", alpha=share, test_loss_global=a, test_error_global=b)
                for share, a, b in ((1e-6, 1.0, 0.2), (1e-4, loss, error))
            ]
            assert verdict(results_of(*lines), "lambda") == expected
            assert verdict(results_of(lines[0]), "lambda") is None


def test_agreement_of_local_and_global_models():
    for (errors, expected), kind in product([((0.2, 0.2), YES), ((0.2, 0.3), PART), ((0.3, 0.3), NO)], ["l1", "l2"]):
        with case(errors, expected, kind):
            experiment = {"l1": "fig3", "l2": "fig7"}[kind]
            lines = [
                runs(experiment, "dp_admm", 0.2, round_epsilon=value, test_error_local=error)
                for value, error in zip((0.05, 0.1), errors, strict=True)
            ]
            assert verdict(results_of(*lines), f"which-model-{kind}") == expected


def test_constant_matters_if_other_values_change_the_error():
    for (errors, expected), (key, column, values) in product(
        [((0.205, 0.195), YES), ((0.205, 0.25), PART), ((0.1, 0.25), NO)],
        [
            ("chosen-radius", "weight_radius", (89.0, 5.0, 300.0)),
            ("chosen-lambda", "alpha", (1e-6, 1e-4, 1e-3)),
        ],
    ):
        with case(errors, expected, key, column, values):
            lines = [
                runs("choices", "dp_admm", level, **{column: value})
                for value, level in zip(values, (0.2, *errors), strict=True)
            ]
            assert verdict(results_of(*lines), key) == expected
            assert verdict(results_of(lines[0]), key) is None


def test_single_agents_are_compared_at_the_same_total():
    for output, objective, expected in [(2, 2, YES), (2, 1, PART), (2, 0.5, NO)]:
        with case(output, objective, expected):
            lines = [
                runs("choices", name, level, epsilon=1.0)
                for name, level in (
                    ("dp_admm", 1),
                    ("output_perturbation", output),
                    ("objective_perturbation", objective),
                )
            ]
            assert verdict(results_of(*lines), "alone") == expected


def test_sampled_dpsgd_is_compared_at_the_same_total():
    for loss, error, expected in [(2, 2, YES), (2, 1, PART), (2, 0.5, NO)]:
        with case(loss, error, expected):
            sampled = sgd("choices", loss, 4.0, epsilon=0.6339, test_error_global=error)
            ours = runs("choices", "dp_admm", total_epsilon=0.6339)
            assert verdict(results_of(sampled, ours), "sampled-dpsgd") == expected


def test_comparisons_need_more_than_one_split():
    results = results_of(runs("fig7", "dp_admm", seeds=[1]), runs("fig7", "admm_pvp", 2, seeds=[1]))
    assert verdict(results, "beats-pvp") == "not measured"
