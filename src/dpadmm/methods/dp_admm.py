"""DP-ADMM, the paper's Algorithm 1: one noisy gradient step per round in place of an exact local solve.

The equations come first. Arrays of agents are (n, d, p), the consensus is (d, p), step sizes are (n, 1, 1). An agent
runs ``dual_step`` (which completes the round before), ``primal_step`` and ``upload``; the aggregator runs
``consensus_step``. The other ADMM methods share all but ``primal_step``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from dpadmm import kernels
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import DeployableMethod, Rho, Round, prepared, zero_models
from dpadmm.engine.method import consensus_step as consensus_step
from dpadmm.engine.noise import LazyAnswers, SimulatedNoise
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.theory import Constant, Constants, Schedule, constants_of, theorem_schedule
from dpadmm.parameters.fields import Positive, checked_parameters
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Problem, Sizes


@dataclass(frozen=True)
class AdmmState:
    """Released local models w̃_i and duals γ_i of a cohort, both (n, d, p)."""

    released: Floats
    dual: Floats


def dual_step(dual: Floats, *, released: Floats, consensus: Floats, rho: float | Floats) -> Floats:
    """Return ``γ^k = γ^{k−1} − ρ (w̃^k − w^k)``. With equal ρ, these duals of all agents sum to zero."""
    out = consensus - released
    out *= rho
    out += dual
    return out


def next_dual(state: AdmmState, consensus: Floats, rho: float | Floats) -> Floats:
    """Return γ^{k−1}, which an agent computes when it receives w^{k−1}.

    An agent that missed rounds uses the first consensus it receives afterwards, so the duals still sum to zero.
    """
    return dual_step(state.dual, released=state.released, consensus=consensus, rho=rho)


def primal_step(
    noisy_gradient: Floats,
    reg_gradient: Floats,
    *,
    released: Floats,
    dual: Floats,
    consensus: Floats,
    rho: float,
    step_size: Floats,
) -> Floats:
    """Return ``w̃^k = (−h − (λ/n)R'(w̃^{k−1}) + γ^{k−1} + ρ w^{k−1} + w̃^{k−1}/η) / (ρ + 1/η)``.

    ``noisy_gradient`` is h, ``reg_gradient`` is (λ/n)R'. Noise of scale s in h is noise of scale s/(ρ + 1/η) in w̃, as
    in the paper.
    """
    inverse_step = 1.0 / step_size
    out = released * inverse_step
    out += rho * consensus
    out += dual
    out -= noisy_gradient
    out -= reg_gradient
    out *= 1.0 / (rho + inverse_step)
    return out


def upload(released: Floats, dual: Floats, rho: float | Floats) -> Floats:
    """Return ``c^k = w̃^k − γ^{k−1}/ρ``. The aggregator needs nothing else of (w̃^k, γ^{k−1})."""
    out = dual * (-1.0 / rho)
    out += released
    return out


@checked_parameters
@dataclass(frozen=True)
class DpAdmm(DeployableMethod[AdmmState]):
    """The paper's Algorithm 1.

    Attributes
    ----------
    constants : Constants
        Constants of the theorems.
    step_sizes : Schedule
        η_i^k of round k.
    noise_multiplier : (n,)
        z of every agent, in units of its gradient's sensitivity 2c1/m_i; 0 means no noise.
    """

    rho: Rho = 0.1
    weight_radius: Annotated[
        Positive, "c_w, a public estimate of the norm of the optimal weights. It affects step sizes, not privacy."
    ] = 10.0
    schedule: Annotated[
        Literal["theorem", "constant"], "Step sizes of the applicable theorem, or step_size in every round."
    ] = "theorem"
    step_size: Annotated[Positive, "η of the constant schedule."] = 1.0
    constants: Constants = prepared()
    step_sizes: Schedule = prepared()
    noise_multiplier: Floats = prepared()

    name: ClassVar[str] = "dp_admm"
    title: ClassVar[str] = "DP-ADMM"
    divergence_hint: ClassVar[str] = (
        "a smaller step_size (or the theorem's schedule), a larger rho, a smaller alpha, or less noise"
    )

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        return self.with_noise(problem, sizes, z := budget.gaussian(), gradient_noise=z)

    def with_noise(self, problem: Problem, sizes: Sizes, z: Floats, *, gradient_noise: Floats) -> Self:
        """Return the method with noise multipliers z (n,).

        ``gradient_noise`` (n,) is the error of an agent's gradient in the same unit: z, unless there are other errors.
        """
        constants = constants_of(
            problem,
            n_features=sizes.n_features,
            n_rows=sizes.n_rows,
            noise_multiplier=gradient_noise,
            weight_radius=self.weight_radius,
        )
        theorem = self.schedule == "theorem"
        step_sizes = theorem_schedule(constants) if theorem else Constant(self.step_size, sizes.n_agents)
        return replace(self, constants=constants, step_sizes=step_sizes, noise_multiplier=z)

    def init(self, problem: Problem, sizes: Sizes) -> AdmmState:
        zeros = zero_models(problem, sizes)
        return AdmmState(released=zeros, dual=zeros)

    def release(self, round: int) -> tuple[str, Floats]:
        return Gradient.name, self.noise_multiplier

    def parameters(self, state: AdmmState, consensus: Floats, *, round: int) -> Floats:
        """Return the point of every agent's gradient, w̃_i^{k−1}."""
        return state.released

    def step(self, state: AdmmState, now: Round) -> tuple[AdmmState, Floats | LazyAnswers]:
        """Run one round. Large simulated cohorts use one compiled pass, with the same bits as ``advance``."""
        if type(now.noise) is not SimulatedNoise or now.active is not None or kernels.is_small(now.rows):
            return super().step(state, now)
        from dpadmm.kernels.updates import admm_round

        problem, n_rows = now.problem, now.rows.n_rows
        released, dual, uploads = admm_round(
            seed=now.noise.seed,
            round=now.number,
            sums=kernels.gradient_sums(now.rows, state.released, problem.loss),
            n_rows=n_rows,
            noise_std=self.noise_multiplier * mean_sensitivity(problem.loss.lipschitz, n_rows),
            reg_gradient=problem.regularizer.gradient(state.released),
            alpha=problem.alpha,
            released=state.released,
            dual=state.dual,
            consensus=now.consensus,
            step_size=self.step_sizes(now.number),
            rho=self.rho,
        )
        return AdmmState(released, dual), uploads

    def advance(
        self, state: AdmmState, answers: Floats, consensus: Floats, *, round: int, problem: Problem
    ) -> tuple[AdmmState, Floats]:
        dual = next_dual(state, consensus, self.rho)
        released = primal_step(
            answers,
            problem.alpha * problem.regularizer.gradient(state.released),
            released=state.released,
            dual=dual,
            consensus=consensus,
            rho=self.rho,
            step_size=self.step_sizes(round)[:, None, None],
        )
        return AdmmState(released, dual), upload(released, dual, self.rho)
