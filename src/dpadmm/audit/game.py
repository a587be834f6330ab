"""The game: two agents on the worst rows there are, and an aggregator that wants to know one of them.

Each agent has one of two data sets that differ in a single row, its *world*. The aggregator knows both, sends
what it likes, and sees uploads only. There is a game for each method that agents can be asked for, and together
they ask for every statistic of the closed list. What an agent says is to be, ``formulas.py`` says.

The loss is the squared one, but where intervals are asked for. The row in question has a label far beyond what any
point here predicts, so that its gradient is as long as it may be after clipping, and only after clipping, in every
round. (With the logistic loss the first round of DP-ADMM, at 0, would have half of that.)

- ``dp_admm``: the row is ``(±cos θ, sin θ)``, and its two gradients are ``2·cos θ`` apart: 0.9988 of the sensitivity.
- ``auto``: the row is ±a with nine equal entries. Its two shaped gradients are opposite, so all of the sensitivity
  2 apart; of its moments ``(a, a∘a, √3·y·a, y²/2)`` the first and the third change their signs: 0.958 of 4.
- ``auto_inference``: the rows of ``dp_admm`` and a logistic loss, far out, where slopes are 1 and curvatures vanish:
  0.9988 of the sensitivity (with the squared loss, no two rows are more than .78 of the sensitivity apart).
- ``auto_counts``, ``auto_times``: the same of the Poisson loss, of counts with an exposure and of survival times. The
  row predicts far more events than the cap in one world, and none in the other. As gradient and Hessian have half of
  the squared norm each, no two rows are further apart than ``√(5/8)`` of the sensitivity, which is for silencing two.
- ``statistics``: the row is ±a, and its two sums all of the sensitivity apart.
- ``evaluation``: the row is in one bin of scores or in another, ``√½`` of the sensitivity apart, which is for silencing
  two rows of the same bin. All labels are positive, so that half of the histogram is noise alone.
- ``auto_coalition``, ``auto_alone``: the same with secure aggregation, and an active aggregator. It tells each of the
  two agents of members of its own: the agent, a site beside it, and a third site, in both, that works with the
  aggregator. In ``alone`` the sites beside do so too. The noise that is left is to be just that of the promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpadmm.audit.formulas import CUTS, FORMULAS, LARGEST_COUNT, N_FEATURES, Formula
from dpadmm.data.schema import Label, Plain, Schema
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import KINDS
from dpadmm.methods.auto import PublicState
from dpadmm.methods.newton import Inferred
from dpadmm.queries.preconditioner import Preconditioner
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.settings import Training, nest
from dpadmm.studies.study import Study

N_ROUNDS = 3
"""Not 4: at μ = 2 the noise multiplier of DP-ADMM would be 1, and its square the same."""
N_USED = 9
IDLE = slice(N_USED, N_FEATURES - 1)
"""Columns that are 0 in all rows: there uploads are noise alone. The last one may be a constant."""
LABEL = 8.0
RHO, STEP_SIZE = 0.05, 20.0
ANGLE = 0.05
MOMENTS_SHARE = 0.15
MOST_ROWS = 64
"""With secure aggregation, what the noise of every agent is for."""


@dataclass(frozen=True, eq=False)
class Role:
    """An agent of a game: its rows in either world, and what the aggregator sends it in each round."""

    name: str
    n_rows: int
    row: tuple[tuple[float, ...], tuple[float, ...]]
    """The row in question, in either world."""
    others: tuple[tuple[int, int, float, float], ...]
    """The rows that are the same in both worlds: column, how many, value, label."""
    sent: tuple[Floats, ...]
    label: float = LABEL
    constant: float = 0.0
    """The last column of all rows that are not 0; others are shortened, so that rows are no longer than before."""

    def rows(self, world: int) -> tuple[Floats, Floats]:
        """Features (m, d) and labels (m,): the row in question first."""
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
    """What a round asks for, its share of the study's μ², and the share of the sensitivity that worlds differ by."""

    statistic: str
    share: float
    sharpness: float
    of: str = ""
    """What labels are, where the statistic's formula depends on it."""

    @property
    def formula(self) -> Formula:
        return FORMULAS[f"{self.statistic} of {self.of}" if self.of else self.statistic]

    def noise_multiplier(self, mu: float) -> float:
        """z of all noise that is left in an answer, where a study costs μ."""
        return 1.0 / (mu * math.sqrt(self.share))


class AttackedRounds(NamedTuple):
    """Some rounds of a game, which are attacked together: their indices, μ beside that of all, and how sharply."""

    name: str
    rounds: tuple[int, ...]
    mu_share: float
    sharpness: float


class Coalition(NamedTuple):
    """Who works with the aggregator: all sites but so many ``min_honest_sites`` ones of a sum; the noise is for
    ``shares``.

    Rosters have the two agents, a site beside each of them, and one that is in the coalition.
    """

    name: str
    shares: int
    min_honest_sites: int

    @property
    def exposure(self) -> float:
        """μ beside that of a study in which enough sites are honest."""
        return math.sqrt(self.shares / self.min_honest_sites)


class Listener(Protocol):
    """What an aggregator makes of one agent's uploads, round by round."""

    def hear(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """The parameters of the statistic that the agent was to answer for, and its noisy mean, both flat."""


@dataclass(frozen=True, eq=False)
class Game:
    """A method under attack."""

    method: str
    constants: Mapping[str, float]
    rounds: tuple[GameRound, ...]
    roles: tuple[Role, Role]
    listener: Callable[[], Listener]
    coalition: Coalition | None = None
    loss: str = "squared"
    inference: bool = False
    label: Label | None = None
    """Of counts, or of events at times."""

    @property
    def name(self) -> str:
        variant = (
            self.coalition.name if self.coalition else self.rounds[0].of or ("inference" if self.inference else "")
        )
        return f"{self.method}_{variant}" if variant else self.method

    @property
    def aggregation(self) -> str:
        return "secure" if self.coalition else "plain"

    @property
    def shares(self) -> int:
        """The noise of an agent is one of so many shares."""
        return self.coalition.shares if self.coalition else 1

    @property
    def exposure(self) -> float:
        """μ of this game beside that of its study."""
        return self.coalition.exposure if self.coalition else 1.0

    @property
    def sites(self) -> tuple[str, ...]:
        """Names in the roster: agents, the sites beside them, and a colluding one; none without secure aggregation."""
        names = [role.name for role in self.roles]
        return (*names, *(f"beside-{name}" for name in names), "colluding") if self.coalition else ()

    @cached_property
    def cuts(self) -> tuple[slice, ...]:
        """Where each round is in the numbers of all rounds, one after the other."""
        ends = np.cumsum([0, *(each.formula.size for each in self.rounds)]).tolist()
        return tuple(slice(*pair) for pair in pairwise(ends))

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.statistic for each in self.rounds))

    @cached_property
    def parts(self) -> tuple[AttackedRounds, ...]:
        """All rounds, the *score*; then those of each statistic, where there are several."""
        names = {"score": self.statistics, **({each: (each,) for each in self.statistics} if self.mixed else {})}
        return tuple(self._part(name, of) for name, of in names.items())

    @property
    def mixed(self) -> bool:
        return len(self.statistics) > 1

    def _part(self, name: str, statistics: tuple[str, ...]) -> AttackedRounds:
        rounds = tuple(k for k, each in enumerate(self.rounds) if each.statistic in statistics)
        share = sum(self.rounds[k].share for k in rounds)
        sharp = sum(self.rounds[k].share * self.rounds[k].sharpness ** 2 for k in rounds)
        return AttackedRounds(name, rounds, math.sqrt(share), math.sqrt(sharp / share))

    def study(self, name: str, *, mu: float, delta: float, keys: Mapping[str, bytes] | None = None) -> Study:
        """A study of three rounds that costs μ in all, by this game; with the private ``keys`` of its sites."""
        training: dict[str, Any] = {
            "method": self.method, "loss": self.loss, "regularizer": "none", **self.constants,
            "noise_multiplier": math.sqrt(N_ROUNDS) * self.exposure / mu, "delta": delta, "n_rounds": N_ROUNDS,
        }  # fmt: skip
        agreed: dict[str, Any] = {}
        if self.method == "dp_admm":
            training["method.schedule"] = "constant"
        if self.inference:
            training["method.inference"] = True
        if self.method in KINDS:
            training["method"] = KINDS[self.method](**({"weights": WEIGHTS} if self.method == "evaluation" else {}))
        if self.coalition:
            training |= {"aggregation": self.aggregation, "min_honest_sites": self.shares}
            agreed = {"max_rows_per_site": MOST_ROWS, "allow_missed_rounds": True, "quorum": self.shares + 1}
        if keys:
            from dpadmm.trusted.masking import public_key  # needs cryptography, which other games do not

            agreed["roster"] = tuple(RosterEntry(site, public_key(keys[site]).hex()) for site in self.sites)
        if self.label:  # and the constant
            columns = tuple(Plain(f"x{j + 1}") for j in range(N_FEATURES - 1))
            agreed |= {"schema": Schema(columns, row_norm=1.0), "label": self.label}
            training["intercept"] = True
        else:
            agreed["features"] = tuple(f"x{j + 1}" for j in range(N_FEATURES))
            agreed["classes"] = (-1, 1) if self.loss == "logistic" else None
        return Study(
            name=name,
            training=Training(**nest(training)),
            provenance=dict.fromkeys(self.constants, "assumed"),
            **agreed,
        )


def _padded(values: tuple[float, ...]) -> Floats:
    return np.array([*values, *[0.0] * (N_FEATURES - len(values))])


# --- DP-ADMM: gradients -------------------------------------------------------------------------------------


class AdmmListener:
    """Follows an agent's model and dual, and solves for h."""

    def __init__(self) -> None:
        self.released, self.dual = np.zeros(N_FEATURES), np.zeros(N_FEATURES)

    def hear(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """The point that the gradient was to be taken at, and the noisy mean gradient.

        Backwards through ``γ' = γ + ρ(w − w̃)``, ``w̃' = (w̃/η + ρw + γ' − h)/(ρ + 1/η)``, ``c = w̃' − γ'/ρ``.
        """
        point, told, said = self.released, sent[:, 0], upload[:, 0]
        dual = self.dual + RHO * (told - point)
        released = said + dual / RHO
        noisy = point / STEP_SIZE + RHO * told + dual - (RHO + 1.0 / STEP_SIZE) * released
        self.released, self.dual = released, dual
        return point, noisy


def _admm_role(name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...], *told: float) -> Role:
    worlds = (math.cos(ANGLE), math.sin(ANGLE)), (-math.cos(ANGLE), math.sin(ANGLE))
    return Role(name, n_rows, worlds, others, (_padded(told)[:, None],) * N_ROUNDS)


DP_ADMM = Game(
    "dp_admm",
    {"loss.gradient_bound": 1.0, "method.rho": RHO, "method.step_size": STEP_SIZE},
    (GameRound("gradient", 1.0 / N_ROUNDS, math.cos(ANGLE)),) * N_ROUNDS,
    (
        # Pushed to a point far out, where rows that are not clipped would have huge gradients. 39 rows (and 19
        # below) of gradient −0.9 each: whoever counts one row too many shows it
        _admm_role("far", 40, ((2, 39, 0.05, 18.0),), 0.0, -400.0),
        # Near 0, with 30 rows whose gradients follow the point: a gradient taken elsewhere, or a state with less
        # noise than was said, shows in the next round
        _admm_role("near", 50, ((2, 19, 0.05, 18.0), *((column, 5, 1.0, 0.0) for column in range(3, N_USED)))),
    ),
    AdmmListener,
)


# --- auto: moments, then shaped gradients -------------------------------------------------------------------


class AutoListener:
    """Nothing to follow: agents remember nothing, and say what they release."""

    def __init__(self) -> None:
        self.round = 0

    def hear(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """``s/C``, ``q`` and ``C·θ`` of what was sent, for shaped gradients; nothing for moments."""
        self.round += 1
        told = PublicState.unpacked(sent, (N_FEATURES, 1))
        asked = [told.preconditioner.scale / told.clip, told.preconditioner.direction, told.clip * told.point[:, 0]]
        return np.concatenate(asked) if self.round > 1 else np.zeros(0), upload.ravel()


def _auto_sent(clip: float, scale: tuple[float, ...], direction: tuple[float, ...], *point: float) -> Floats:
    """A message with C, s, q and θ, and nothing in what agents have no use for."""
    ones, none = (np.arange(N_FEATURES) >= len(scale)).astype(float), np.zeros((N_FEATURES, 1))
    return PublicState(
        clip=clip, step=0.0, shrink=1.0, n_averaged=0.0, ridge=0.0, prior_weight=0.0, noise=0.0,
        preconditioner=Preconditioner(_padded(scale) + ones, _padded(direction)), point=_padded(point)[:, None],
        last_gradient=none, total=none, origin=none,
    ).packed()  # fmt: skip


def _auto_role(
    name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...],
    scale: tuple[float, ...], direction: tuple[float, ...], *point: float,
) -> Role:  # fmt: skip
    """Shapes differ between rounds: rows that are kept in an old one would show."""
    row = (1.0 / 3.0,) * N_USED
    sent = _auto_sent(1.0, scale, direction, *point), _auto_sent(1.25, scale, direction[::-1], *point)
    return Role(name, n_rows, (row, tuple(-each for each in row)), others, (sent[0], *sent))


AUTO = Game(
    "auto",
    {"loss.gradient_bound": 3.0},  # which has no say: shaped gradients are shortened to 1
    (
        GameRound("moments", MOMENTS_SHARE, math.sqrt(4.0 / (4.25 + 1.0 / N_USED))),
        *(GameRound("preconditioned_gradient", (1.0 - MOMENTS_SHARE) / (N_ROUNDS - 1), 1.0),) * (N_ROUNDS - 1),
    ),
    (
        # Far out, and in coordinates in which the row is long. 20 rows whose moments are shortened
        _auto_role("far", 40, ((2, 20, 1.0, 1.0), (2, 19, 0.05, 18.0)),
                   (4.0, 4.0, 1.0, *[4.0] * 6), (0.4, 0.4, 0.2, *[0.3] * 3, 0.2, 0.4, 0.4), 400.0, -400.0),
        # Ten rows of zeros with labels; 30 rows that nothing shortens, and whose gradients follow the point
        _auto_role("near", 50, ((2, 9, 0.05, 18.0), (2, 10, 0.0, 18.0),
                                *((column, 5, 1.0, 0.0) for column in range(3, N_USED))),
                   (1.0, 1.5, 2.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.3, -0.6, 0.9, *[0.5] * 6), *[0.2] * N_USED),
    ),
    AutoListener,
)  # fmt: skip


class NewtonListener:
    """Likewise; ``more`` weights than features, and the cap where there is one."""

    def __init__(self, *, more: int = 0, capped: bool = False) -> None:
        self.n_weights, self.capped = N_FEATURES + more, capped

    def hear(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """The point, and the cap."""
        told = Inferred.unpacked(sent, self.n_weights)
        return np.append(told.weights, told.clip) if self.capped else told.weights, upload.ravel()


def _newton_role(name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...], *point: float) -> Role:
    worlds = (math.cos(ANGLE), math.sin(ANGLE)), (-math.cos(ANGLE), math.sin(ANGLE))
    none = np.zeros((N_FEATURES, N_FEATURES))
    sent = tuple(Inferred(1.0, 0.0, _padded((0.0, far, *point)), none).packed() for far in (1e3, 2e3, 1e3))
    return Role(name, n_rows, worlds, others, sent, label=-1.0)


AUTO_INFERENCE = Game(
    "auto",
    {},
    tuple(GameRound("newton", share, math.cos(ANGLE)) for share in (0.2, 0.2, 0.6)),
    (
        # 20 rows at the golden ratio, where gradient and Hessian together are 1 long
        _newton_role("far", 40, ((2, 20, 1.0, -1.0), (3, 19, 0.05, 1.0)), math.log((math.sqrt(5.0) + 1.0) / 2.0)),
        # Ten rows of zeros with labels; 30 rows that follow the point
        _newton_role("near", 50, ((2, 9, 0.05, 1.0), (2, 10, 0.0, 1.0),
                                  *((column, 5, 1.0, 1.0) for column in range(3, N_USED))),
                     0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
    ),
    NewtonListener,
    loss="logistic",
    inference=True,
)  # fmt: skip


def _count(count: float, exposure: float = 1.0) -> float:
    """A label: the count over the largest one, in whole steps, and what is missing of the longest exposure."""
    return count * 2.0**26 + (1.0 - exposure)


def _count_role(
    name: str, n_rows: int, others: tuple[tuple[int, int, float, float], ...], caps: tuple[float, ...],
    constants: tuple[float, ...], *point: float,
) -> Role:  # fmt: skip
    worlds = (math.cos(ANGLE), math.sin(ANGLE)), (math.cos(ANGLE), -math.sin(ANGLE))
    weights = np.append(_padded((0.0, 1e3, *point))[:-1], constants)
    none = np.zeros((len(weights), len(weights)))
    sent = tuple(Inferred(cap, 0.0, weights, none).packed() for cap in caps)
    return Role(name, n_rows, worlds, others, sent, label=_count(1.0), constant=0.28)


def _count_game(of: str, label: Label, caps: tuple[float, ...], *constants: float) -> Game:
    roles = (
        # 20 rows whose means are above the cap, and 19 whose counts are far above their means
        _count_role("far", 40, ((2, 20, 1.0, _count(0.0, 0.9)), (3, 19, 0.05, _count(1.0, 0.05))),
                    caps, constants, 3.0),
        # Ten rows of zeros with labels; 30 rows that follow the point, and end at all times
        _count_role("near", 50, ((2, 9, 0.05, _count(0.0, 0.3)), (2, 10, 0.0, _count(1.0, 0.6)),
                                 *((column, 5, 1.0, _count(column % 2, column / 8)) for column in range(3, N_USED))),
                    caps, constants, 0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
    )  # fmt: skip
    listener = partial(NewtonListener, more=len(constants) - 1, capped=True)
    rounds = []
    for k, share in enumerate((0.2, 0.2, 0.6)):
        round = GameRound("newton", share, 1.0, of)
        asked, _ = listener().hear(roles[0].sent[k], np.zeros(0))
        one, other = (round.formula.total(*roles[0].rows(world), asked) for world in (0, 1))
        rounds.append(round._replace(sharpness=float(np.linalg.norm(one - other)) / (2.0 * round.formula.row_norm)))
    return Game("auto", {}, tuple(rounds), roles, listener, loss="poisson", inference=True, label=label)


AUTO_COUNTS = _count_game(  # at the first cap, counts are clipped to half of the largest one
    "counts", Label("y", bounds=(0.0, LARGEST_COUNT), exposure="years", exposure_bound=1.0), (0.125, 1.0, 1.0), -1.0
)
AUTO_TIMES = _count_game("times", Label("y", exposure="years", times=(*CUTS, 1.0)), (0.5, 1.0, 1.0), -1.0, 0.5)

# --- Studies that train nothing -----------------------------------------------------------------------------

WEIGHTS = (2.0, -1.0, 1.0, 0.3, -0.4, 6.0, -6.0, 0.1, 0.2, *[0.0] * (N_FEATURES - N_USED))


class ReleaseListener:
    """Likewise: what is asked for is in the study."""

    def __init__(self, point: tuple[float, ...] = ()) -> None:
        self.point = np.array(point)

    def hear(self, sent: Floats, upload: Floats) -> tuple[Floats, Floats]:
        return self.point, upload.ravel()


def _release_role(name: str, n_rows: int, row: tuple[float, ...], size: int, *values: float) -> Role:
    """Five rows in each column, whose values are those of its turn; the other rows are 0."""
    others = tuple((column, 5, values[column % len(values)], 1.0) for column in range(2, 7))
    worlds = row, tuple(-each for each in row)
    return Role(name, n_rows, worlds, others, (np.zeros(3 + size),) * N_ROUNDS, label=1.0)


QUERIES = Game(
    "statistics",
    {},
    (GameRound("column_sums", 1.0 / N_ROUNDS, 1.0),) * N_ROUNDS,
    (
        _release_role("long", 40, (1.0 / 3.0,) * N_USED, N_FEATURES, 1.0, -1.0),
        _release_role("short", 50, (1.0,), N_FEATURES, 0.1, 0.5, -0.3),
    ),
    ReleaseListener,
    loss="logistic",
)

EVALUATION = Game(
    "evaluation",
    {},
    (GameRound("score_histogram", 1.0 / N_ROUNDS, math.sqrt(0.5)),) * N_ROUNDS,
    (_release_role("far", 40, (1.0,), 40, 1.0, -1.0), _release_role("near", 50, (0.6, 0.8), 40, 0.1, 0.5, -0.3)),
    partial(ReleaseListener, WEIGHTS),
    loss="logistic",
)

AUTO_COALITION = replace(AUTO, coalition=Coalition("coalition", shares=2, min_honest_sites=2))
AUTO_ALONE = replace(AUTO, coalition=Coalition("alone", shares=2, min_honest_sites=1))

GAMES: Mapping[str, Game] = {
    game.name: game
    for game in (
        AUTO, DP_ADMM, AUTO_INFERENCE, AUTO_COUNTS, AUTO_TIMES, QUERIES, EVALUATION, AUTO_COALITION, AUTO_ALONE,
    )
}  # fmt: skip
