"""Replay of a deployed run in one process, with the same noise, compared with the journal bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpadmm.engine.loop import PlannedParticipation, train
from dpadmm.engine.noise import ExactNoise, Noise, SecureSumNoise
from dpadmm.errors import DataError
from dpadmm.federation.server.journal import Journal
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, stacked
from dpadmm.queries.problem import PublicSizes, Rows, make_rows
from dpadmm.sites.site import Site
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import as_mean
from dpadmm.trusted.guard import EnrolledStudy, enrolled_queries
from dpadmm.trusted.masking import Mask, Masks, members_of
from dpadmm.trusted.private_rows import CheckedRows, ProtectedRows


@dataclass(frozen=True)
class Replay:
    """The result of a replay. ``n_releases`` are in the ledgers; ``n_lost`` of them never reached the server."""

    first_difference: int
    """The first round whose consensus differs from the journal; 0 if none does."""
    n_rounds: int
    n_releases: int
    n_late: int
    """Releases that entered the mean of a later round."""
    n_lost: int
    noise_scale: float
    """Root mean square of the noise, in units of its promised standard deviation: about 1."""
    n_numbers: int = 1
    """The number of values in ``noise_scale``."""

    @property
    def equal(self) -> bool:
        """Whether every consensus is identical and the noise has its promised size."""
        spread = 8.0 / np.sqrt(2.0 * max(1, self.n_numbers))
        return self.first_difference == 0 and abs(self.noise_scale - 1.0) <= spread


Repeat = Callable[[Journal, Rows, Sequence[dict[int, Integers]]], list[Floats]]
"""``(journal, rows of all members, their noise by round) -> the broadcast after every round``."""


def replay(journal: Journal, sites: Mapping[str, Site], repeat: Repeat | None = None) -> Replay:
    """Repeat a deployed run in this process and compare every round with the journal.

    ``noise_i^k = answer_i^k − round(Σ_j g_j(w̃_i^{k−1}) / g)`` is the noise that a site's guard added. It is
    computed from the tables and ledgers of ``sites``. These are all members, and their processes must have ended.
    ``repeat`` is for runs with late or lost answers, which ``repeat_rounds`` does not support.
    """
    study, names = journal.study, journal.members
    parts = [sites[name].rows.encoded(study) for name in names]
    released = {name: _releases(sites[name], study, part) for name, part in zip(names, parts, strict=True)}
    entered = entered_in(journal)
    for name, round in entered:
        if round not in released[name].answers:
            raise DataError(f"the journal has an upload of {name} for round {round} that is not in its ledger")
    if study.terms.masking is not None:
        _check_sums(journal, released)
    noise = [releases.noise for releases in released.values()]
    recorded, repeated = list(journal.consensus()), (repeat or repeat_rounds)(journal, _all_rows(parts), noise)
    pairs = enumerate(zip(repeated, recorded, strict=True), 1)
    scaled = [numbers.ravel() for releases in released.values() for numbers in releases.scaled]
    numbers, n_releases = np.concatenate([np.zeros(0), *scaled]), sum(map(len, noise))
    return Replay(
        first_difference=next((k for k, (a, b) in pairs if a.tobytes() != b.tobytes()), 0),
        n_rounds=journal.rounds_done,
        n_releases=n_releases,
        n_late=sum(k > round for (_, round), k in entered.items()),
        n_lost=n_releases - len(entered),
        noise_scale=float(np.sqrt(np.mean(np.square(numbers)))) if numbers.size else 1.0,
        n_numbers=numbers.size,
    )


def entered_in(journal: Journal) -> dict[tuple[str, int], int]:
    """Return the round whose mean or sum each answer first entered, by site and round of the answer."""
    if journal.study.terms.masking is not None:
        return {(site, k): k for site, rounds in journal.answered().items() for k in rounds}
    return {(upload.site, upload.round): k for k, upload in journal.uploads()}


def answers_of(site: Site, study: Study) -> dict[int, tuple[Integers, Floats]]:
    """Return a site's answers before masking, from its ledger, and the consensus of their requests, by round."""
    masking = study.terms.masking
    keys = [] if masking is None else [key for _, key in masking.roster]
    masks = None if masking is None else Masks(study.hash, site.key_of(masking), keys)
    with site.open_ledger() as ledger:
        transcript = ledger.transcript(study.hash) if study.hash in ledger.status().accounts else []
    answers = {}
    for record, stored in transcript:
        shape = study.upload_shape(record.round)
        size, end = math.prod(shape), len(stored) - (len(keys) + 7) // 8
        numbers = np.frombuffer(stored, "<i8", size).astype(np.int64)
        if masks is not None:  # x = y − mask; the digest of a masked answer is the context of its mask
            numbers -= Mask(masks, members_of(stored[end:], len(keys)), bytes.fromhex(record.digest)).numbers(size)
        consensus = np.frombuffer(stored[8 * size : end], "<f8").astype(np.float64)
        answers[record.round] = numbers.reshape(shape), consensus.reshape(study.broadcast_shape)
    return answers


class SiteReleases(NamedTuple):
    """A site's answers by round, the noise in them, and the noise over its promised standard deviation."""

    answers: dict[int, Integers]
    noise: dict[int, Integers]
    scaled: list[Floats]


def _releases(site: Site, study: Study, rows: ProtectedRows) -> SiteReleases:
    """Compute the noise of a site's answers by repeating its computation."""
    problem, n_rows, checked = study.problem, len(rows.labels), CheckedRows(rows)
    enrolled = EnrolledStudy(study.terms, checked, enrolled_queries(study.terms, checked, site.policy), masks=None)
    method = study.method(n_rows)
    state = method.init(problem, PublicSizes(np.array([n_rows]), study.shape[0]))
    releases = SiteReleases({}, {}, [])
    for round, (answer, consensus) in answers_of(site, study).items():
        point = np.array(method.parameters(state, consensus, round=round)[0])
        query = enrolled.query_at(round)
        noise = answer - enrolled.rows.total(query.statistic, point, query.grid)
        releases.answers[round], releases.noise[round] = answer, noise
        releases.scaled.append(noise / query.grid.noise_scale(query.release.noise_multiplier, query.shares))
        mean = as_mean(answer, query.grid)[None]
        state, _ = method.advance(state, mean, consensus, round=round, problem=problem)
    return releases


def _check_sums(journal: Journal, released: Mapping[str, SiteReleases]) -> None:
    """Raise ``DataError`` unless the sum of each round is the sum of its members' answers."""
    answered = journal.answered()
    for round, total in journal.sums().items():
        members = [released[name].answers[round] for name, rounds in answered.items() if round in rounds]
        if not np.array_equal(total, np.sum(members, axis=0)):
            raise DataError(f"the sum of round {round} in the journal is not the sum of its members' answers")


def _all_rows(parts: list[ProtectedRows]) -> Rows:
    labels = [part.labels for part in parts]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in labels])])
    weights = [part.row_weights for part in parts if part.row_weights is not None]
    row_weights = np.concatenate(weights) if weights else None
    features = stacked([clip_rows(part.features) for part in parts])
    return make_rows(features, np.concatenate(labels), offsets=offsets, row_weights=row_weights)


def repeat_rounds(journal: Journal, rows: Rows, noise: Sequence[dict[int, Integers]]) -> list[Floats]:
    """Return the broadcast after every round of ``train``, the loop of simulations, with the noise of the sites."""
    study, n_rounds, masking = journal.study, journal.rounds_done, journal.study.terms.masking
    participates, aborted_rounds = np.zeros((n_rounds, rows.n_agents), dtype=bool), set[int]()
    # a site that dropped out of an aborted round has no noise in it
    source: Noise = ExactNoise(lambda i, round: lambda _, n: noise[i].get(round, np.zeros(n, np.int64)).ravel())
    if masking is None:
        for i, rounds in enumerate(noise):
            participates[[round - 1 for round in rounds if round <= n_rounds], i] = True
    else:
        for opening in journal.openings()[:n_rounds]:
            participates[opening.round - 1, list(members_of(opening.members, len(masking.roster)))] = True
        source = SecureSumNoise(source, masking.min_honest_sites, rows.n_rows, masking.max_rows_per_site)
        aborted_rounds = {aborted.round for aborted in journal.aborted_rounds()}
    history: list[Floats] = []
    train(
        journal.method(*rows.n_rows.tolist()),
        study.problem,
        rows,
        n_rounds=n_rounds,
        noise=source,
        participation=PlannedParticipation(participates),
        observers=[lambda view: history.append(np.array(view.broadcast))],
        aborts=aborted_rounds.__contains__,
    )
    return history
