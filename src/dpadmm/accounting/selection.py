"""Private selection: the cost of releasing only the best of a secret number of runs.

K is Poisson with parameter λ, conditioned on K ≥ 1; its mean is ``k = λ/(1 − e^{−λ})``. Each of the K runs is μ-GDP and
computes its own score. Only the run with the highest score is released; K and the other runs stay secret (Liu and
Talwar 2019; Papernot and Steinke 2022, Theorem 6). For every order α > 1 the Rényi divergence is at most

``α μ²/2 + λ·δ_μ(ln(α/(α − 1))) + ln(k)/(α − 1)``, with the exact ``δ_μ(ε)`` of a μ-GDP release.

*Proof.* Let a run return y with density Q(y), and score at most as high as y with probability q (ties are broken at
random).
The best of K runs is y with density ``Q(y)·f'(q)``, where ``f(x) = E x^K``, so ``f'(x) = k·e^{λ(x − 1)}``. In
``∫ A^α A'^{1−α}``, for neighbours, the integrand is ``Q^α Q'^{1−α}·k·exp(λ·{(α − 1)(1 − q') − α(1 − q)})``. A
higher score is an event of one run, so ``1 − q' ≤ e^ε(1 − q) + δ_μ(ε)`` for every ε; with ``e^ε = α/(α − 1)`` the
braces are at most ``(α − 1)·δ_μ(ε)``. The rest, ``∫ Q^α Q'^{1−α}``, is at most ``exp((α − 1)·α μ²/2)``. ∎

dp_accounting's ``RepeatAndSelectDpEvent`` is the reference in the tests. It bounds δ by Rényi divergences, while δ is
exact here. With five runs this allows 1/6 more μ per run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, islice

import numpy as np

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.composition import ORDERS, epsilon_from_renyi
from dpadmm.accounting.gaussian import ROUND_UP, exact_delta, smallest_true
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.checks import require, require_delta, require_whole

MAX_RUNS = 100


def selection_epsilon(mu: float, runs: int, delta: float) -> float:
    """Return an upper bound of the total ε at δ of the best of K runs, each of them μ-GDP. ``runs`` is λ.

    Examples
    --------
    Five expected runs with ε = 0.6 each cost less than two of them:

    >>> round(selection_epsilon(mu_from_epsilon(0.6, 1e-5), 5, 1e-5), 3)
    0.973
    """
    require_runs(runs)
    require_delta(delta)
    orders = 1.0 + ORDERS
    # A smaller ε has a larger δ, so rounding ε down is safe
    tails = exact_delta(np.full(orders.shape, mu), np.log1p(1.0 / ORDERS) / ROUND_UP)
    return epsilon_from_renyi(selected_renyi(orders * mu * mu / 2.0, tails, orders, runs), orders, delta)


def selected_renyi(divergences: Floats, tails: Floats, orders: Floats, runs: int) -> Floats:
    """Return the bound at every order α, given the bound of one run and its δ at ``ε = ln(α/(α − 1))``."""
    return divergences + runs * tails + math.log(expected_runs(runs)) / (orders - 1.0)


def expected_runs(runs: int) -> float:
    """Return ``k = λ/(1 − e^{−λ})``, the mean of K."""
    return runs / -math.expm1(-runs)


def run_mu(epsilon: float, delta: float, runs: int) -> float:
    """Return the largest μ of one run for which the best of K is (ε, δ)-private, rounded down.

    Examples
    --------
    >>> round(run_mu(1.0, 1e-5, 5) / mu_from_epsilon(1.0, 1e-5), 3)
    0.643
    """

    def holds(z: Floats) -> np.ndarray:
        return np.array(selection_epsilon(1.0 / float(z), runs, delta) <= epsilon)

    z = np.array(1.0 / mu_from_epsilon(epsilon, delta))  # enough for one run only
    while not holds(z):
        z = 2.0 * z
    return float(1.0 / smallest_true(holds, z / 2.0, z) / ROUND_UP)


def draw_runs(runs: int, below: Callable[[int], int]) -> int:
    """Draw K in integer arithmetic, ``P(K = k) ∝ λ^k/k!`` for k ≥ 1. ``below(n)`` is uniform on 0 … n − 1.

    The tail with probability below 10⁻²⁵⁰ is cut off.
    """
    require_runs(runs)
    runs, max_k = int(runs), 200 + 8 * int(runs)
    weights = accumulate(range(1, max_k + 1), lambda weight, k: weight * runs // k, initial=math.factorial(max_k))
    totals = list(accumulate(islice(weights, 1, None)))  # the first weight is for K = 0
    return 1 + bisect_right(totals, below(totals[-1]))


def require_runs(runs: int) -> None:
    """Raise StudyError unless ``runs`` is an integer from 1 to MAX_RUNS."""
    require_whole("runs", runs, least=1)
    require("runs", runs, lambda n: n <= MAX_RUNS, f"at most {MAX_RUNS}")
