"""What it costs to train a secret number of times and release the best run alone.

K is Poisson with mean λ, drawn again while it is 0; its mean is then ``k = λ/(1 − e^{−λ})``. Each of K runs is μ-GDP
and gives itself a score. The run with the highest score is released, and neither K nor anything of the other runs
(Liu and Talwar 2019; Papernot and Steinke 2022, Theorem 6). For every order α > 1 the Rényi divergence is at most

``α μ²/2 + λ·δ_μ(ln(α/(α − 1))) + ln(k)/(α − 1)``, with the exact ``δ_μ(ε)`` of a μ-GDP release.

*Proof.* Let a run end in y with density Q(y), and a score up to that of y with chance q (ties are broken by a coin).
The best of K runs is y with density ``Q(y)·f'(q)``, where ``f(x) = E x^K``, so ``f'(x) = k·e^{λ(x − 1)}``. In
``∫ A^α A'^{1−α}``, for neighbours, the integrand is thus ``Q^α Q'^{1−α}·k·exp(λ·{(α − 1)(1 − q') − α(1 − q)})``. A
higher score is an event of one run, so ``1 − q' ≤ e^ε(1 − q) + δ_μ(ε)`` for every ε; with ``e^ε = α/(α − 1)`` the
braces are at most ``(α − 1)·δ_μ(ε)``. The rest, ``∫ Q^α Q'^{1−α}``, is at most ``exp((α − 1)·α μ²/2)``. ∎

dp_accounting's ``RepeatAndSelectDpEvent`` is the tests' oracle: it takes δ from Rényi divergences where it is known
exactly here, so that with five runs each may have a sixth more μ.
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

MOST_RUNS = 100


def selection_epsilon(mu: float, runs: int, delta: float) -> float:
    """The total ε at δ of the best of K runs, each of them μ-GDP; ``runs`` is λ. Never below the truth.

    Examples
    --------
    Five runs on average, of ε 0.6 each, cost less than two:

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
    """The bound at every order α, from that of one run and from its δ at ``ε = ln(α/(α − 1))``."""
    return divergences + runs * tails + math.log(expected_runs(runs)) / (orders - 1.0)


def expected_runs(runs: int) -> float:
    """``k = λ/(1 − e^{−λ})``, the mean of K."""
    return runs / -math.expm1(-runs)


def run_mu(epsilon: float, delta: float, runs: int) -> float:
    """The largest μ of one run with which the best of K is (ε, δ)-private, rounded down.

    Examples
    --------
    >>> round(run_mu(1.0, 1e-5, 5) / mu_from_epsilon(1.0, 1e-5), 3)
    0.643
    """

    def holds(z: Floats) -> np.ndarray:
        return np.array(selection_epsilon(1.0 / float(z), runs, delta) <= epsilon)

    z = np.array(1.0 / mu_from_epsilon(epsilon, delta))  # one run's, which is too small
    while not holds(z):
        z = 2.0 * z
    return float(1.0 / smallest_true(holds, z / 2.0, z) / ROUND_UP)


def draw_runs(runs: int, below: Callable[[int], int]) -> int:
    """K in whole numbers alone, ``P(K = k) ∝ λ^k/k!`` for k ≥ 1; ``below(n)`` is uniform on 0 … n − 1.

    It is cut where less than 10⁻²⁵⁰ is left.
    """
    require_runs(runs)
    runs, most = int(runs), 200 + 8 * int(runs)
    weights = accumulate(range(1, most + 1), lambda weight, k: weight * runs // k, initial=math.factorial(most))
    totals = list(accumulate(islice(weights, 1, None)))  # the first weight is that of no run
    return 1 + bisect_right(totals, below(totals[-1]))


def require_runs(runs: int) -> None:
    """A number of runs, or a sentence."""
    require_whole("runs", runs, least=1)
    require("runs", runs, lambda n: n <= MOST_RUNS, f"at most {MOST_RUNS}")
