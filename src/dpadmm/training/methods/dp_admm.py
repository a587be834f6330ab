"""DP-ADMM, the paper's Algorithm 1: one noisy gradient step per round in place of an exact local solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from dpadmm._base.arrays import Floats
from dpadmm._base.fields import Positive
from dpadmm.optim import updates
from dpadmm.optim.problem import Problem, Sizes
from dpadmm.optim.theory import Constant, Schedule, theorem_schedule
from dpadmm.privacy.statistics.gradient import Gradient
from dpadmm.training.methods.admm_state import (
    AdmmState,
    check_noise,
    next_dual,
    zero_models,
)
from dpadmm.training.methods.base import DeployableMethod, MethodSettings, Rho

if TYPE_CHECKING:
    from dpadmm.training.setup import Setup


@dataclass(frozen=True)
class DpAdmm(MethodSettings):
    """The paper's Algorithm 1."""

    rho: Rho = 0.1
    weight_radius: Annotated[
        Positive, "c_w, a public guess of the norm of the best weights; it shapes step sizes, not privacy."
    ] = 10.0
    schedule: Annotated[
        Literal["theorem", "constant"], "Step sizes of the theorem that applies, or step_size in every round."
    ] = "theorem"
    step_size: Annotated[Positive, "η of the constant schedule."] = 1.0

    name: ClassVar[str] = "dp_admm"
    title: ClassVar[str] = "DP-ADMM"
    deployable: ClassVar[bool] = True

    def rounds(self, setup: Setup) -> DpAdmmRounds:
        z = setup.gaussian()
        constants = setup.constants(self.weight_radius, z)
        theorem = self.schedule == "theorem"
        schedule = theorem_schedule(constants) if theorem else Constant(self.step_size, setup.n_agents)
        return DpAdmmRounds(self.rho, schedule, z)


@dataclass(frozen=True)
class DpAdmmRounds(DeployableMethod[AdmmState]):
    """Algorithm 1.

    Attributes
    ----------
    rho : float
        Penalty ρ.
    schedule : Schedule
        Step sizes η_i^k.
    noise_multiplier : (n,)
        z of every agent: its gradient gets Gaussian noise of z times the sensitivity 2c1/m_i. 0 means none.
    """

    rho: float
    schedule: Schedule
    noise_multiplier: Floats

    name: ClassVar[str] = "dp_admm"
    cure: ClassVar[str] = (
        "a smaller step_size (or the theorem's schedule), a larger rho, a smaller reg_share, or less noise"
    )
    local_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)

    def init(self, problem: Problem, sizes: Sizes) -> AdmmState:
        zeros = zero_models(problem, sizes)
        return AdmmState(released=zeros, dual=zeros)

    def release(self, round: int) -> tuple[str, Floats]:
        return Gradient.name, self.noise_multiplier

    def parameters(self, state: AdmmState, consensus: Floats, *, round: int) -> Floats:
        """Where every agent's gradient is wanted: w̃_i^{k−1}."""
        return state.released

    def advance(
        self, state: AdmmState, answers: Floats, consensus: Floats, *, round: int, problem: Problem
    ) -> tuple[AdmmState, Floats]:
        dual = next_dual(state, consensus, self.rho)
        released = updates.primal_step(
            answers,
            problem.reg_share * problem.regularizer.gradient(state.released),
            released=state.released,
            dual=dual,
            consensus=consensus,
            rho=self.rho,
            step_size=self.schedule(round)[:, None, None],
        )
        return AdmmState(released, dual), updates.upload(released, dual, self.rho)
