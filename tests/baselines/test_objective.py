"""Rényi bound of objective perturbation compared with exact divergences by quadrature, on a line and in the plane.

With ``w = argmin f(w) + ⟨ξ, w⟩`` the density of w is ``N(−∇f(w); 0, σ²I) det ∇²f(w)``. With L the log-ratio of two
neighbours' densities at w, ``E[e^{sL}] − 1 = E[expm1(sL) + s expm1(−L)]``, since ``E[e^{−L}] = 1``. This form is
positive and keeps its relative precision for small divergences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from looping import case
from scipy.special import expit, ndtr

from dpadmm.accounting.composition import objective_renyi
from dpadmm.accounting.events import ObjectiveRelease
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats

LOGISTIC, HINGE, HUBER, SQUARED = range(4)
COARSE, NODES = 81, 4
OTHERS = 6  # distinct other rows, each taken many times


def bound(mu: Floats, beta: Floats, alpha: Floats, *, kappa: float = 1.0, det: float = 1.0) -> Floats:
    """The formula, implemented independently. ``kappa`` and ``det`` are factors that weaken it."""
    s, half_normal, e = alpha - 1.0, mu * math.sqrt(2.0 / math.pi), det * np.log1p(beta)
    mean = kappa * np.minimum(beta**2 / (1.0 + beta), half_normal + e)
    log_moment = s * e + (s * mu) ** 2 / 2.0 + np.log(2.0 * ndtr(s * mu))
    moment = np.exp(np.minimum(log_moment, 40.0))
    inside = np.log(moment - s * (half_normal + e - mean))
    return mu**2 / 2.0 + np.where(log_moment > 40.0, log_moment, inside) / s


@dataclass(frozen=True)
class Cases:
    """Arrays over cases. Rows: ``(a, b)`` of the two neighbours' own row, then the rows they share."""

    loss: Floats  # (n,) which loss
    shape: Floats  # (n,) the hinge's width, huber's delta, squared's bound
    a: Floats  # (n, 2 + OTHERS)
    b: Floats
    times: Floats  # (n, OTHERS), how often a shared row occurs
    m: Floats
    q: Floats
    shift: Floats  # everything linear: dual, centre
    z: Floats
    alpha: Floats

    @property
    def lipschitz(self) -> Floats:
        return np.where(self.loss >= HUBER, self.shape, 1.0)

    @property
    def smoothness(self) -> Floats:
        return np.choose(self.loss.astype(int), [0.25, 1.0 / self.shape, 1.0, 1.0])

    @property
    def sigma(self) -> Floats:
        return self.z * 2.0 * self.lipschitz / self.m

    @property
    def beta(self) -> Floats:
        return self.smoothness / (self.m * self.q)

    def row(self, j: int, w: Floats) -> tuple[Floats, Floats]:
        """Return slope and curvature in w of row j of every case, at points (n, k)."""
        a, b, h = self.a[:, j, None], self.b[:, j, None], self.shape[:, None]
        slope, curvature = np.empty_like(w), np.empty_like(w)
        for kind in range(4):
            i = self.loss == kind
            x, y, c, score = a[i], b[i], h[i], a[i] * w[i]
            if kind == LOGISTIC:
                sign = np.where(y < 0.0, -1.0, 1.0)
                p = expit(-sign * score)
                slope[i], curvature[i] = -sign * x * p, x * x * p * (1.0 - p)
            elif kind == HINGE:
                sign = np.where(y < 0.0, -1.0, 1.0)
                gap = (1.0 - sign * score) / c
                slope[i] = -sign * x * np.clip(gap, 0.0, 1.0)
                curvature[i] = x * x / c * ((gap > 0.0) & (gap < 1.0))
            else:
                limit = c if kind == HUBER else c / np.maximum(np.abs(x), 1e-12)
                slope[i] = x * np.clip(score - y, -limit, limit)
                curvature[i] = x * x * (np.abs(score - y) < limit)
        return slope, curvature

    def landmarks(self) -> Floats:
        """Return points where the slope of any row bends, and where a logistic slope changes sign: (n, k)."""
        a = np.where(np.abs(self.a) < 1e-6, 1e-6, self.a)[:, :, None]
        b, shape, loss = self.b[:, :, None], self.shape[:, None, None], self.loss[:, None, None]
        steps = np.array([-1.0, 1.0])
        hinge = np.where(b < 0.0, -1.0, 1.0) * (1.0 - shape * (0.5 + 0.5 * steps))
        limit = np.where(loss == SQUARED, shape / np.abs(a), shape)
        kinks = np.where(loss == HINGE, hinge, b + limit * steps) / a
        smooth = np.where(loss == LOGISTIC, np.linspace(-25.0, 25.0, 25) / a, kinks[..., :1])
        places = np.concatenate([kinks, smooth], 2)
        return places.reshape(len(self.m), -1)

    def common(self, w: Floats) -> tuple[Floats, Floats]:
        """Return slope and curvature of everything except the own row."""
        slope, curvature = (
            self.q[:, None] * w + self.shift[:, None],
            np.broadcast_to(self.q[:, None], w.shape),
        )
        for j in range(OTHERS):
            share = (self.times[:, j] / self.m)[:, None]
            own_slope, own_curvature = self.row(2 + j, w)
            slope, curvature = slope + share * own_slope, curvature + share * own_curvature
        return slope, curvature

    def points(self, j: int, u: Floats) -> Floats:
        """Return the points w (n, k) at which the slope of the neighbour with row j is σu, by bisection."""
        far = (np.abs(self.shift) + self.sigma * np.abs(u).max(1) + 2.0 * self.lipschitz) / self.q
        low, high = np.broadcast_to(-far[:, None], u.shape), np.broadcast_to(far[:, None], u.shape)
        for _ in range(36):
            w = (low + high) / 2.0
            above = self.common(w)[0] + self.row(j, w)[0] / self.m[:, None] > self.sigma[:, None] * u
            low, high = np.where(above, low, w), np.where(above, w, high)
        return low

    def exact(self) -> Floats:
        """Return the Rényi divergence of every case, by quadrature in ``u = ξ/σ``."""
        sigma, s, m = self.sigma[:, None], self.alpha[:, None] - 1.0, self.m[:, None]
        even = np.linspace(-1.0, 1.0, COARSE)
        near, far = (even * (9.0 + size / self.z)[:, None] for size in (0.0, self.alpha))
        w = np.concatenate([self.points(0, near), self.points(0, far), self.points(1, near)], 1)
        bends = np.clip(self.landmarks(), w.min(1)[:, None], w.max(1)[:, None])
        w, weights = _gauss(np.concatenate([w, bends], 1))
        slope, curvature = self.common(w)
        (slope_1, curve_1), (slope_2, curve_2) = self.row(0, w), self.row(1, w)
        first, second = slope + slope_1 / m, slope + slope_2 / m
        log_ratio = (second - first) * (second + first) / (2.0 * sigma**2)
        log_ratio += np.log1p(curve_1 / m / curvature) - np.log1p(curve_2 / m / curvature)
        return _renyi(first / sigma, log_ratio, s, weights * (curvature + curve_1 / m) / sigma)


def _gauss(w: Floats) -> tuple[Floats, Floats]:
    """Return nodes and weights of Gauss's rule between neighbouring points of w (n, k)."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    w = np.sort(w, axis=1)
    start, width = w[:, :-1, None], np.diff(w)[:, :, None]
    return tuple(v.reshape(len(w), -1) for v in (start + width * (nodes + 1.0) / 2.0, width * weights / 2.0))  # type: ignore[return-value]


def _renyi(u: Floats, log_ratio: Floats, s: Floats, weights: Floats) -> Floats:
    """``(1/s) ln ∫ φ(u) e^{sL} du`` with quadrature weights."""
    log_density = -0.5 * u * u - 0.5 * math.log(2.0 * math.pi)
    # both densities have the mass 1 on these points, or the quadrature is worth nothing
    for log_values in (log_density, log_density - log_ratio):
        np.testing.assert_allclose((np.exp(log_values) * weights).sum(1), 1.0, atol=1e-6)
    top = np.max(log_density + s * log_ratio, axis=1, keepdims=True)
    large = np.log((np.exp(log_density + s * log_ratio - top) * weights).sum(1)) + top[:, 0]
    small = np.minimum(s * log_ratio, 600.0)
    positive = np.expm1(small) + s * np.expm1(np.minimum(-log_ratio, 600.0))
    near = np.log1p((np.exp(log_density) * positive * weights).sum(1))
    return np.asarray(np.where(top[:, 0] > 20.0, large, near) / s[:, 0])


def random_cases(n: int, seed: int) -> Cases:
    """Return random cases. Every second one has an extreme replaced row."""
    rng = np.random.default_rng(seed)
    m = np.ceil(np.exp(rng.uniform(0.0, math.log(1000.0), n)))
    times = np.stack([rng.multinomial(int(k) - 1, np.full(OTHERS, 1.0 / OTHERS)) for k in m]).astype(float)
    a = rng.uniform(-1.0, 1.0, (n, 2 + OTHERS))
    b = rng.uniform(-1.0, 1.0, a.shape) * np.exp(rng.uniform(-1.0, 4.0, (n, 1)))
    extreme = np.arange(n) % 2 == 0
    a[extreme, :2] = rng.choice([-1.0, 1.0], (n, 2))[extreme]
    b[extreme, 1] = -b[extreme, 0] * (a * b)[extreme, 1] / (a * b)[extreme, 1]
    a[extreme & (rng.random(n) < 0.25), 1] = 0.0  # a row that says nothing
    q = np.exp(rng.uniform(math.log(1e-4), math.log(10.0), n))  # ρ + λ
    return Cases(
        loss=rng.integers(0, 4, n).astype(float),
        shape=np.exp(rng.uniform(-2.0, 1.0, n)),
        a=a,
        b=b,
        times=times,
        m=m,
        q=q,
        shift=rng.normal(size=n) * np.exp(rng.uniform(-4.0, 3.0, n)) * np.minimum(q, 1.0),
        z=np.exp(rng.uniform(math.log(0.3), math.log(300.0), n)),
        alpha=1.0 + np.exp(rng.uniform(math.log(0.01), math.log(199.0), n)),
    )


def swapped(cases: Cases) -> Cases:
    """Return the same neighbours in the other direction."""
    order = [1, 0, *range(2, 2 + OTHERS)]
    return replace(cases, a=cases.a[:, order], b=cases.b[:, order])


@pytest.fixture(scope="module")
def exact() -> list[tuple[Cases, Floats]]:
    """1,100 random pairs of neighbours, 100 in both directions, with their exact divergences."""
    one_way = random_cases(1000, 1)
    both_ways = random_cases(100, 2)
    return [(cases, cases.exact()) for cases in (one_way, both_ways, swapped(both_ways))]


def largest_ratio(exact: list[tuple[Cases, Floats]], mu_factor: float = 1.0, **weaker: float) -> float:
    return max(
        float((divergence / bound(mu_factor / cases.z, cases.beta, cases.alpha, **weaker)).max())
        for cases, divergence in exact
    )


def test_no_exact_divergence_exceeds_the_bound(
    exact: list[tuple[Cases, Floats]], record_property: Callable[[str, object], None]
) -> None:
    ratio = largest_ratio(exact)
    record_property("largest exact divergence / bound", ratio)
    assert 0.995 < ratio <= 1.0


def test_weaker_bound_fails_on_these_cases(exact: list[tuple[Cases, Floats]]) -> None:
    for weaker in [
        {"mu_factor": 0.99},
        {"mu_factor": 0.9},
        {"kappa": 0.0},
        {"det": 0.0},
        {"kappa": 0.0, "det": 0.0},
    ]:
        with case(weaker):
            assert largest_ratio(exact, **weaker) > 1.01


def test_code_computes_the_formula_and_rounds_up(exact: list[tuple[Cases, Floats]]) -> None:
    for cases, divergence in exact:
        formula = bound(1.0 / cases.z, cases.beta, cases.alpha)
        coded = np.array(
            [
                objective_renyi(ObjectiveRelease(z, beta), np.array([alpha]))[0]
                for z, beta, alpha in zip(cases.z, cases.beta, cases.alpha, strict=True)
            ]
        )
        np.testing.assert_allclose(coded, formula, rtol=1e-6)
        assert (divergence <= coded).all()


def plane_divergence(
    rows: Floats, offset: Floats, *, m: int, q: float, z: float, alpha: float, clip: float | None
) -> float:
    """Return the Rényi divergence for weights in the plane: rows[0] against rows[1], the rest is shared.

    Logistic with labels in the rows, or (``clip``) squared with label 0 and slopes clipped to that norm.
    """
    sigma, s = z * 2.0 * (clip or 1.0) / m, alpha - 1.0

    def row(a: Floats, w: Floats) -> tuple[Floats, Floats]:
        score = w @ a
        if clip is None:
            p = expit(-score)
            return -p, p * (1.0 - p)
        limit = clip / np.linalg.norm(a)
        return np.clip(score, -limit, limit), (np.abs(score) < limit).astype(float)

    def neighbour(own: int, w: Floats) -> tuple[Floats, Floats]:
        slope, xx, xy, yy = q * (w - offset), q, 0.0, q  # and the Hessian's entries
        for a in (rows[own], *rows[2:]):
            first, second = row(a, w)
            slope = slope + first[..., None] * (a / m)
            xx, xy, yy = (h + second * (p / m) for h, p in ((xx, a[0] ** 2), (xy, a[0] * a[1]), (yy, a[1] ** 2)))
        return slope, xx * yy - xy * xy

    center = offset.copy()
    for _ in range(200):
        center = center - neighbour(0, center)[0] / (q + 1.0)
    reach = (7.5 + alpha / z) * sigma / q
    axis = np.linspace(-reach, reach, 241)
    w = center + np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    (g1, det1), (g2, det2) = neighbour(0, w), neighbour(1, w)
    log_ratio = ((g2 - g1) * (g2 + g1)).sum(-1) / (2.0 * sigma**2) + np.log(det1 / det2)
    density = np.exp(-(g1**2).sum(-1) / (2.0 * sigma**2)) * det1 / (2.0 * math.pi * sigma**2)
    cell = (axis[1] - axis[0]) ** 2
    assert density.sum() * cell == pytest.approx(1.0, abs=5e-3)
    positive = density * (np.expm1(s * log_ratio) + s * np.expm1(-log_ratio))
    return math.log1p(float(positive.sum() * cell)) / s


def test_in_the_plane_opposite_slopes_nearly_attain_the_bound() -> None:
    """Rows ``(±cos θ, sin θ)``, both misclassified by far: there are no such logistic rows in one dimension."""
    rows = np.array([[math.cos(0.05), math.sin(0.05)], [-math.cos(0.05), math.sin(0.05)]])
    for z, alpha in ((3.0, 1.05), (10.0, 1.5), (1.0, 8.0)):
        given = {"m": 1000, "q": 1.0, "z": z, "alpha": alpha}
        found = plane_divergence(rows, np.array([0.0, -400.0]), clip=None, **given)  # type: ignore[arg-type]
        limit = objective_renyi(ObjectiveRelease(z, 0.25 / 1000), np.array([alpha]))[0]
        assert 0.9 * limit < found <= limit


def test_in_the_plane_the_bound_holds_for_rows_of_any_direction() -> None:
    rng = np.random.default_rng(5)
    ratios = []
    for i in range(40):
        rows = rng.normal(size=(4, 2))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        if i % 3 == 0:
            rows[1] = rows[0] @ np.array([[0.0, 1.0], [-1.0, 0.0]])  # one direction for another
        m, q = int(rng.integers(3, 6)), math.exp(rng.uniform(-1.5, 1.5))
        clip = None if i % 2 else 1.0
        z, alpha = math.exp(rng.uniform(-1.0, 3.0)), 1.0 + math.exp(rng.uniform(-4.0, 1.0))
        offset = rng.normal(size=2) * 2.0
        found = plane_divergence(rows, offset, m=m, q=q, z=z, alpha=alpha, clip=clip)
        ratio = (0.25 if clip is None else 1.0) / (m * q)
        ratios.append(found / objective_renyi(ObjectiveRelease(z, ratio), np.array([alpha]))[0])
    assert 0.05 < max(ratios) <= 1.0


def test_limits() -> None:
    orders = np.array([1.0 + 1e-6, 1.5, 10.0, 1e6])
    plain = objective_renyi(ObjectiveRelease(1000.0, 0.0), orders[:3])
    np.testing.assert_allclose(plain, orders[:3] / 2e6, rtol=0.01)  # no curvature: a Gaussian release
    curved = objective_renyi(ObjectiveRelease(1e9, 0.3), orders)
    assert (curved <= math.log(1.3) * (1 + 1e-6) + 1e-9).all()  # no slope: pure ln(1 + β)
    assert curved[-1] == pytest.approx(math.log(1.3), rel=1e-3)
    assert np.isinf(objective_renyi(ObjectiveRelease(0.0, 0.1), orders)).all()
    assert np.isinf(objective_renyi(ObjectiveRelease(1.0, 0.1, 0.0), orders)).all()
    huge = objective_renyi(ObjectiveRelease(1e-3, 1e6), np.geomspace(1.001, 1e9, 50))
    assert np.isfinite(huge[:40]).all()
    assert (np.diff(huge) >= 0.0).all()


def test_tolerance_noise_is_an_additional_gaussian_release() -> None:
    orders = np.array([1.01, 2.0, 30.0])
    with_noise = objective_renyi(ObjectiveRelease(5.0, 0.1, 40.0), orders)
    extra = with_noise - objective_renyi(ObjectiveRelease(5.0, 0.1), orders)
    np.testing.assert_allclose(extra, orders / 2.0 / 40.0**2, rtol=1e-9)


def test_invalid_arguments_are_refused() -> None:
    for values in [(-1.0, 0.1), (1.0, -0.1), (1.0, math.inf), (math.nan, 0.1), (1.0, 0.1, -1.0)]:
        with case(values), pytest.raises(StudyError):
            ObjectiveRelease(*values)
