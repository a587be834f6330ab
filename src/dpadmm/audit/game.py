"""Distinguishing games: two agents with worst-case rows, and an adversarial server that tries to infer one row each.

Each agent has one of two data sets, its *world*, which differ in a single row. The server has both, chooses all
messages, and sees only uploads. There is a game for each method; together they release every query of the closed
list. ``formulas.py`` has the expected sums.

The loss is squared except for studies with intervals. The differing row has a label far beyond any prediction here,
so its clipped gradient has the maximum norm in every round. (With the logistic loss, it would have half of that in
the first round of DP-ADMM, at 0.)

- ``dp_admm``: the row is ``(±cos θ, sin θ)``. Its two gradients differ by ``2·cos θ``: 0.9988 of the sensitivity.
- ``pgd``: the row is ±a with nine equal entries. Its two preconditioned gradients are opposite and differ by the
  whole sensitivity of 2. Of its moments ``(a, a∘a, √3·y·a, y²/2)``, the first and the third change their signs:
  0.958 of 4. Of the calibration, the derivatives are opposite and the changes equal: ``√0.8`` of 2.
- ``newton``: the rows of ``dp_admm`` with the logistic loss at a distant point, where slopes are 1 and
  curvatures vanish: 0.9988 of the sensitivity (with the squared loss, at most 0.78).
- ``newton_counts``, ``newton_times``: the same with the Poisson loss, for counts with an exposure and for survival
  times. The row predicts far more events than the cap in one world, and none in the other. Gradient and Hessian have
  half of the squared norm each, so two rows differ by at most ``√(5/8)`` of the sensitivity, which covers replacing two
  rows by zeros.
- ``statistics``: the row is ±a, and its two sums differ by the whole sensitivity.
- ``evaluation``: the row is in one of two bins of scores, which differ by ``√½`` of the sensitivity. The sensitivity
  covers replacing two rows of the same bin by zeros. All labels are positive, so half of the histogram is only noise.
- ``pgd_coalition``, ``pgd_alone``: the same with secure aggregation and an active server. It sends each of the two
  agents its own set of members: the agent, a partner site, and a third site that is in both sets and colludes with the
  server. In ``alone`` the partners collude too. The remaining noise must be exactly the promised one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpadmm.audit.formulas import CUTS, FORMULAS, MAX_COUNT, N_FEATURES, Formula
from dpadmm.data.schema import Label, Plain, Schema
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import KINDS
from dpadmm.methods.newton import NewtonState
from dpadmm.methods.pgd import PublicState
from dpadmm.queries.preconditioner import Preconditioner
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.settings import Training, nest
from dpadmm.studies.study import Study

N_ROUNDS = 3
"""Rounds of most games. Not 4: at μ = 2 the noise multiplier of DP-ADMM would be 1, and its square the same."""
N_USED = 9
IDLE = slice(N_USED, N_FEATURES - 1)
"""Columns that are 0 in all rows, so that uploads are only noise. The last column may be a constant."""
LABEL = 8.0
RHO, STEP_SIZE = 0.05, 20.0
ANGLE = 0.05
MOMENTS_SHARE, CALIBRATION_SHARE = 0.15, 0.05
MAX_ROWS_PER_SITE = 64
"""With secure aggregation, the limit for which every agent's noise is computed."""


@dataclass(frozen=True, eq=False)
class Role:
    """An agent of a game: its rows in either world, and the server's message of each round."""

    name: str
    n_rows: int
    row: tuple[tuple[float, ...], tuple[float, ...]]
    """The differing row, in either world."""
    others: tuple[tuple[int, int, float, float], ...]
    """The rows that both worlds share: column, count, value, label."""
    sent: tuple[Floats, ...]
    label: float = LABEL
    constant: float = 0.0
    """The last column of all nonzero rows. The other columns are scaled so that row norms do not change."""

    def rows(self, world: int) -> tuple[Floats, Floats]:
        """Return features (m, d) and labels (m,), with the differing row first."""
        features, labels = np.zeros((self.n_rows, N_FEATURES)), np.full(self.n_rows, self.label)
        features[0] = _padded(self.row[world])
        first = 1
        for column, count, value, label in self.others:
            features[first : first + count, column] = value
            labels[first : first + count] = label
            first += count
        if self.constant:
            features *= math.sqrt(1.0 - self.constant**2)
            features[:, -1] = self.constant * features.any(axis=1)
        return features, labels


class GameRound(NamedTuple):
    """A round's query, its share of the study's μ², and the share of the sensitivity by which worlds differ."""

    statistic: str
    share: float
    sharpness: float
    label_kind: str = ""
    """The kind of label, if the query's formula depends on it."""

    @property
    def formula(self) -> Formula:
        return FORMULAS[f"{self.statistic} of {self.label_kind}" if self.label_kind else self.statistic]

    def noise_multiplier(self, mu: float) -> float:
        """Return z of all noise that remains in an answer of a study that costs μ."""
        return 1.0 / (mu * math.sqrt(self.share))


class AttackedRounds(NamedTuple):
    """Rounds of a game that are attacked together: their indices, share of the total μ, and sharpness."""

    name: str
    rounds: tuple[int, ...]
    mu_share: float
    sharpness: float


class Coalition(NamedTuple):
    """Sites that collude with the server: all members of a sum except ``min_honest_sites``.

    The noise of each site is one of ``shares``. Rosters contain the two agents, a partner of each, and one colluding
    site.
    """

    name: str
    shares: int
    min_honest_sites: int

    @property
    def exposure(self) -> float:
        """μ relative to that of a study with enough honest sites."""
        return math.sqrt(self.shares / self.min_honest_sites)


class Decoder(Protocol):
    """The server's reconstruction of one agent's releases, round by round."""

    def decode(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """Return the parameters of the agent's query, and its noisy mean, both flat."""


@dataclass(frozen=True, eq=False)
class Game:
    """A method under attack."""

    method: str
    constants: Mapping[str, float]
    rounds: tuple[GameRound, ...]
    roles: tuple[Role, Role]
    decoder: Callable[[], Decoder]
    coalition: Coalition | None = None
    loss: str = "squared"
    label: Label | None = None
    """The label of counts, or of events at times."""

    @property
    def name(self) -> str:
        variant = self.coalition.name if self.coalition else self.rounds[0].label_kind
        return f"{self.method}_{variant}" if variant else self.method

    @property
    def n_rounds(self) -> int:
        return len(self.rounds)

    @property
    def aggregation(self) -> str:
        return "secure" if self.coalition else "plain"

    @property
    def shares(self) -> int:
        """The noise of an agent is one of this number of shares."""
        return self.coalition.shares if self.coalition else 1

    @property
    def exposure(self) -> float:
        """μ of this game relative to that of its study."""
        return self.coalition.exposure if self.coalition else 1.0

    @property
    def sites(self) -> tuple[str, ...]:
        """Names in the roster: agents, their partners, and a colluding site; none without secure aggregation."""
        names = [role.name for role in self.roles]
        return (*names, *(f"partner-{name}" for name in names), "colluding") if self.coalition else ()

    @cached_property
    def cuts(self) -> tuple[slice, ...]:
        """The position of each round in the concatenated numbers of all rounds."""
        ends = np.cumsum([0, *(round.formula.size for round in self.rounds)]).tolist()
        return tuple(slice(*pair) for pair in pairwise(ends))

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(round.statistic for round in self.rounds))

    @cached_property
    def parts(self) -> tuple[AttackedRounds, ...]:
        """All rounds, the *score*; then the rounds of each query, if there are several."""
        names = {"score": self.statistics, **({name: (name,) for name in self.statistics} if self.mixed else {})}
        return tuple(self._part(name, statistics) for name, statistics in names.items())

    @property
    def mixed(self) -> bool:
        return len(self.statistics) > 1

    def _part(self, name: str, statistics: tuple[str, ...]) -> AttackedRounds:
        rounds = tuple(k for k, round in enumerate(self.rounds) if round.statistic in statistics)
        share = sum(self.rounds[k].share for k in rounds)
        sharp = sum(self.rounds[k].share * self.rounds[k].sharpness ** 2 for k in rounds)
        return AttackedRounds(name, rounds, math.sqrt(share), math.sqrt(sharp / share))

    def study(self, name: str, *, mu: float, delta: float, keys: Mapping[str, bytes] | None = None) -> Study:
        """Return a study that costs μ in total. ``keys`` are the private keys of its sites."""
        training: dict[str, Any] = {
            "method": self.method, "loss": self.loss, "regularizer": "none", **self.constants,
            "noise_multiplier": math.sqrt(self.n_rounds) * self.exposure / mu, "delta": delta,
            "n_rounds": self.n_rounds,
        }  # fmt: skip
        options: dict[str, Any] = {}
        if self.method == "dp_admm":
            training["method.schedule"] = "constant"
        if self.method in KINDS:
            parameters: dict[str, Any] = {"weights": WEIGHTS} if self.method == "evaluation" else {}
            training["method"] = KINDS[self.method](**parameters)
        if self.coalition:
            training |= {"aggregation": self.aggregation, "min_honest_sites": self.shares}
            options = {"max_rows_per_site": MAX_ROWS_PER_SITE, "allow_missed_rounds": True, "quorum": self.shares + 1}
        if keys:
            from dpadmm.trusted.masking import public_key  # needs cryptography, which other games do not

            options["roster"] = tuple(RosterEntry(site, public_key(keys[site]).hex()) for site in self.sites)
        if self.label:  # and the constant
            columns = tuple(Plain(f"x{j + 1}") for j in range(N_FEATURES - 1))
            options |= {"schema": Schema(columns, row_norm=1.0), "label": self.label}
            training["intercept"] = True
        else:
            options["features"] = tuple(f"x{j + 1}" for j in range(N_FEATURES))
            options["classes"] = (-1, 1) if self.loss == "logistic" else None
        return Study(
            name=name,
            training=Training(**nest(training)),
            provenance=dict.fromkeys(self.constants, "assumed"),
            **options,
        )


def _padded(values: tuple[float, ...]) -> Floats:
    return np.array([*values, *[0.0] * (N_FEATURES - len(values))])


# --- DP-ADMM: gradients -------------------------------------------------------------------------------------


class AdmmDecoder:
    """Tracks an agent's model and dual, and solves for h."""

    def __init__(self) -> None:
        self.released, self.dual = np.zeros(N_FEATURES), np.zeros(N_FEATURES)

    def decode(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """Return the point of the gradient, and the noisy mean gradient.

        Backwards through ``γ' = γ + ρ(w − w̃)``, ``w̃' = (w̃/η + ρw + γ' − h)/(ρ + 1/η)``, ``c = w̃' − γ'/ρ``.
        """
        point, consensus = self.released, sent[:, 0]
        dual = self.dual + RHO * (consensus - point)
        released = upload[:, 0] + dual / RHO
        noisy = point / STEP_SIZE + RHO * consensus + dual - (RHO + 1.0 / STEP_SIZE) * released
        self.released, self.dual = released, dual
        return point, noisy


def _admm_role(name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...], *consensus: float) -> Role:
    worlds = (math.cos(ANGLE), math.sin(ANGLE)), (-math.cos(ANGLE), math.sin(ANGLE))
    return Role(name, n_rows, worlds, others, (_padded(consensus)[:, None],) * N_ROUNDS)


DP_ADMM = Game(
    "dp_admm",
    {"loss.gradient_bound": 1.0, "method.rho": RHO, "method.step_size": STEP_SIZE},
    (GameRound("gradient", 1.0 / N_ROUNDS, math.cos(ANGLE)),) * N_ROUNDS,
    (
        # A distant point, where unclipped rows would have huge gradients. 39 rows (and 19 below) have the gradient
        # −0.9 each, so that one row too many is detected
        _admm_role("far", 40, ((2, 39, 0.05, 18.0),), 0.0, -400.0),
        # Near 0, with 30 rows whose gradients depend on the point: a gradient at another point, or a state with less
        # noise than released, is detected in the next round
        _admm_role("near", 50, ((2, 19, 0.05, 18.0), *((column, 5, 1.0, 0.0) for column in range(3, N_USED)))),
    ),
    AdmmDecoder,
)


# --- pgd: moments, two preconditioned gradients, and the calibration --------------------------------------------


class PgdDecoder:
    """Agents have no state: an upload is the release."""

    def __init__(self) -> None:
        self.round = 0

    def decode(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """Return the parameters of the message; nothing for moments.

        Of gradients these are ``s/C``, ``q`` and ``C·θ``. The calibration has the direction ``w/‖θ‖`` of the weights
        ``w = Bᵀθ``, the points ``w/2`` and w, and two clipping bounds.
        """
        self.round += 1
        state = PublicState.unpacked(sent, (N_FEATURES, 1))
        preconditioner, point = state.preconditioner, state.point[:, 0]
        parameters = np.zeros(0)
        if self.round in (2, 3):
            parts = preconditioner.scale / state.clip, preconditioner.direction, state.clip * point
            parameters = np.concatenate(parts)
        elif self.round == 4:
            turn = 1.0 + float(np.sum(preconditioner.direction**2))
            along = float(preconditioner.direction @ point) / (turn + math.sqrt(turn))
            weights = preconditioner.scale * (point - along * preconditioner.direction)
            size = float(np.linalg.norm(point))
            bounds = [state.residual, min(state.curvature * size, 2.0 * state.residual)]
            parameters = np.concatenate([weights / (state.score_bound * size), weights / 2.0, weights, bounds])
        return parameters, upload.ravel()


def _pgd_sent(clip: float, scale: tuple[float, ...], direction: tuple[float, ...], *point: float) -> Floats:
    """Return a message with C, s, q and θ, and the bounds of the calibration; agents do not use the other fields."""
    ones, none = (np.arange(N_FEATURES) >= len(scale)).astype(float), np.zeros((N_FEATURES, 1))
    return PublicState(
        clip=clip, step=0.0, score_bound=1.5, residual=0.5, curvature=1.0, shrink=1.0, scale=1.0, level=0.0,
        n_averaged=0.0, age=0.0, ridge=0.0, prior_weight=0.0, noise=0.0,
        preconditioner=Preconditioner(_padded(scale) + ones, _padded(direction)), point=_padded(point)[:, None],
        momentum=none, last_gradient=none, total=none, origin=none,
    ).packed()  # fmt: skip


def _pgd_role(
    name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...],
    scale: tuple[float, ...], direction: tuple[float, ...], *point: float,
) -> Role:  # fmt: skip
    """Return a role whose preconditioner changes between rounds, so that rows cached for an old one are detected.

    In the last round, scores of the row are far below its label.
    """
    row = (1.0 / 3.0,) * N_USED
    sent = _pgd_sent(1.0, scale, direction, *point), _pgd_sent(1.25, scale, direction[::-1], *point)
    last = _pgd_sent(1.0, tuple(4.0 * value for value in scale), direction, *[0.01] * N_USED)
    return Role(name, n_rows, (row, tuple(-value for value in row)), others, (sent[0], *sent, last))


PGD = Game(
    "pgd",
    {"loss.gradient_bound": 3.0},  # not used: preconditioned gradients are clipped to norm 1
    (
        GameRound("moments", MOMENTS_SHARE, math.sqrt(4.0 / (4.25 + 1.0 / N_USED))),
        *(GameRound("preconditioned_gradient", (1.0 - MOMENTS_SHARE - CALIBRATION_SHARE) / 2.0, 1.0),) * 2,
        GameRound("calibration", CALIBRATION_SHARE, math.sqrt(0.8)),
    ),
    (
        # A distant point, and a preconditioner that gives the row a large norm. The moments of 20 rows are clipped
        _pgd_role("far", 40, ((2, 20, 1.0, 1.0), (2, 19, 0.05, 18.0)),
                   (4.0, 4.0, 1.0, *[4.0] * 6), (0.4, 0.4, 0.2, *[0.3] * 3, 0.2, 0.4, 0.4), 400.0, -400.0),
        # Ten rows of zeros with labels; 30 rows that are not clipped and whose gradients depend on the point
        _pgd_role("near", 50, ((2, 9, 0.05, 18.0), (2, 10, 0.0, 18.0),
                                *((column, 5, 1.0, 0.0) for column in range(3, N_USED))),
                   (1.0, 1.5, 2.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.3, -0.6, 0.9, *[0.5] * 6), *[0.2] * N_USED),
    ),
    PgdDecoder,
)  # fmt: skip


class NewtonDecoder:
    """The same, with ``more`` weights than features, and the cap if there is one."""

    def __init__(self, *, more: int = 0, capped: bool = False) -> None:
        self.n_weights, self.capped = N_FEATURES + more, capped

    def decode(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """Return the point, with the cap, and the release."""
        state = NewtonState.unpacked(sent, self.n_weights)
        return np.append(state.weights, state.clip) if self.capped else state.weights, upload.ravel()


def _newton_role(name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...], *point: float) -> Role:
    worlds = (math.cos(ANGLE), math.sin(ANGLE)), (-math.cos(ANGLE), math.sin(ANGLE))
    none = np.zeros((N_FEATURES, N_FEATURES))
    sent = tuple(NewtonState(1.0, 0.0, _padded((0.0, far, *point)), none).packed() for far in (1e3, 2e3, 1e3))
    return Role(name, n_rows, worlds, others, sent, label=-1.0)


NEWTON = Game(
    "newton",
    {},
    tuple(GameRound("newton", share, math.cos(ANGLE)) for share in (0.2, 0.2, 0.6)),
    (
        # 20 rows at the golden ratio, where gradient and Hessian have a joint norm of 1
        _newton_role("far", 40, ((2, 20, 1.0, -1.0), (3, 19, 0.05, 1.0)), math.log((math.sqrt(5.0) + 1.0) / 2.0)),
        # Ten rows of zeros with labels; 30 rows that depend on the point
        _newton_role("near", 50, ((2, 9, 0.05, 1.0), (2, 10, 0.0, 1.0),
                                  *((column, 5, 1.0, 1.0) for column in range(3, N_USED))),
                     0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
    ),
    NewtonDecoder,
    loss="logistic",
)  # fmt: skip


def _count(count: float, exposure: float = 1.0) -> float:
    """Return a label: the count over the maximum, in whole steps, and the missing share of the maximum exposure."""
    return count * 2.0**26 + (1.0 - exposure)


def _count_role(
    name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...], caps: tuple[float, ...],
    constants: tuple[float, ...], *point: float,
) -> Role:  # fmt: skip
    worlds = (math.cos(ANGLE), math.sin(ANGLE)), (math.cos(ANGLE), -math.sin(ANGLE))
    weights = np.append(_padded((0.0, 1e3, *point))[:-1], constants)
    none = np.zeros((len(weights), len(weights)))
    sent = tuple(NewtonState(cap, 0.0, weights, none).packed() for cap in caps)
    return Role(name, n_rows, worlds, others, sent, label=_count(1.0), constant=0.28)


def _count_game(kind: str, label: Label, caps: tuple[float, ...], *constants: float) -> Game:
    roles = (
        # 20 rows whose means are above the cap, and 19 whose counts are far above their means
        _count_role("far", 40, ((2, 20, 1.0, _count(0.0, 0.9)), (3, 19, 0.05, _count(1.0, 0.05))),
                    caps, constants, 3.0),
        # Ten rows of zeros with labels; 30 rows that depend on the point, with various exposures
        _count_role("near", 50, ((2, 9, 0.05, _count(0.0, 0.3)), (2, 10, 0.0, _count(1.0, 0.6)),
                                 *((column, 5, 1.0, _count(column % 2, column / 8)) for column in range(3, N_USED))),
                    caps, constants, 0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
    )  # fmt: skip
    decoder = partial(NewtonDecoder, more=len(constants) - 1, capped=True)
    rounds = []
    for k, share in enumerate((0.2, 0.2, 0.6)):
        round = GameRound("newton", share, 1.0, kind)
        parameters, _ = decoder().decode(roles[0].sent[k], np.zeros(0))
        one, other = (round.formula.total(*roles[0].rows(world), parameters) for world in (0, 1))
        rounds.append(round._replace(sharpness=float(np.linalg.norm(one - other)) / (2.0 * round.formula.row_norm)))
    return Game("newton", {}, tuple(rounds), roles, decoder, loss="poisson", label=label)


NEWTON_COUNTS = _count_game(  # at the first cap, counts are clipped to half of the maximum
    "counts", Label("y", bounds=(0.0, MAX_COUNT), exposure="years", exposure_bound=1.0), (0.125, 1.0, 1.0), -1.0
)
NEWTON_TIMES = _count_game("times", Label("y", exposure="years", times=(*CUTS, 1.0)), (0.5, 1.0, 1.0), -1.0, 0.5)

# --- Studies that train nothing -----------------------------------------------------------------------------

WEIGHTS = (2.0, -1.0, 1.0, 0.3, -0.4, 6.0, -6.0, 0.1, 0.2, *[0.0] * (N_FEATURES - N_USED))


class ReleaseDecoder:
    """An upload is the release, and the study contains the query."""

    def __init__(self, point: tuple[float, ...] = ()) -> None:
        self.point = np.array(point)

    def decode(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        return self.point, upload.ravel()


def _release_role(name: str, n_rows: int, row: tuple[float, ...], size: int, *values: float) -> Role:
    """Return a role with five rows in each column, which take the values in turn; the other rows are 0."""
    others = tuple((column, 5, values[column % len(values)], 1.0) for column in range(2, 7))
    worlds = row, tuple(-value for value in row)
    return Role(name, n_rows, worlds, others, (np.zeros(3 + size),) * N_ROUNDS, label=1.0)


QUERIES = Game(
    "statistics",
    {},
    (GameRound("column_sums", 1.0 / N_ROUNDS, 1.0),) * N_ROUNDS,
    (
        _release_role("long", 40, (1.0 / 3.0,) * N_USED, N_FEATURES, 1.0, -1.0),
        _release_role("short", 50, (1.0,), N_FEATURES, 0.1, 0.5, -0.3),
    ),
    ReleaseDecoder,
    loss="logistic",
)

EVALUATION = Game(
    "evaluation",
    {},
    (GameRound("score_histogram", 1.0 / N_ROUNDS, math.sqrt(0.5)),) * N_ROUNDS,
    (_release_role("far", 40, (1.0,), 40, 1.0, -1.0), _release_role("near", 50, (0.6, 0.8), 40, 0.1, 0.5, -0.3)),
    partial(ReleaseDecoder, WEIGHTS),
    loss="logistic",
)

PGD_COALITION = replace(PGD, coalition=Coalition("coalition", shares=2, min_honest_sites=2))
PGD_ALONE = replace(PGD, coalition=Coalition("alone", shares=2, min_honest_sites=1))

GAMES: Mapping[str, Game] = {
    game.name: game
    for game in (
        PGD, DP_ADMM, NEWTON, NEWTON_COUNTS, NEWTON_TIMES, QUERIES, EVALUATION, PGD_COALITION, PGD_ALONE,
    )
}  # fmt: skip
