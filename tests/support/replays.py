"""A deployed run repeated in this process, also if answers were late or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpadmm.engine.method import Round, RoundResult
from dpadmm.engine.noise import ExactNoise
from dpadmm.federation import replay as replays
from dpadmm.federation.server.journal import Journal
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import Rows
from dpadmm.sites.site import Site


def replay(journal: Journal, sites: Mapping[str, Site]) -> replays.Replay:
    return replays.replay(journal, sites, repeat)


def repeat(journal: Journal, rows: Rows, noise: Sequence[dict[int, Integers]]) -> list[Floats]:
    """Repeat the run with ``train`` if every answer entered the mean of its round."""
    entered, done = replays.entered_in(journal), journal.rounds_done
    spoken = {(name, k) for name, rounds in zip(journal.members, noise, strict=True) for k in rounds if k <= done}
    in_time = spoken == set(entered) and all(k == round for (_, round), k in entered.items())
    if in_time or journal.study.terms.masking is not None:
        return replays.repeat_rounds(journal, rows, noise)
    return with_delays(journal, rows, noise, entered)


def with_delays(
    journal: Journal, rows: Rows, noise: Sequence[dict[int, Integers]], entered: Mapping[tuple[str, int], int]
) -> list[Floats]:
    """Repeat the run with the same loop, with late or lost uploads."""
    study, problem, method = journal.study, journal.study.problem, journal.method(*rows.n_rows.tolist())
    source = ExactNoise(lambda agent, round: lambda scale, count: noise[agent][round].ravel())
    state, consensus = method.init(problem, rows), method.start(study.shape)
    uploads = np.zeros((rows.n_agents, *study.upload_shape(1)))
    sent_in: dict[int, Floats] = {}
    answered = np.zeros(rows.n_agents, dtype=np.int64)
    history: list[Floats] = []
    for k in range(1, journal.rounds_done + 1):
        said = np.flatnonzero([k in share for share in noise])
        if said.size:
            state, sent = method.step(state, Round(k, problem, rows, consensus, source, said))
            sent_in[k] = np.array(sent)
        if method.server_side:
            uploads = np.zeros((rows.n_agents, *study.upload_shape(k)))
        now = [name for name, when in entered.items() if when == k]
        for name, round in sorted(now, key=lambda item: item[1]):
            agent = journal.members.index(name)
            answered[agent] = max(answered[agent], round)
            if round == k or not method.server_side:
                uploads[agent] = sent_in[round][agent]
        active = np.flatnonzero([(name, k) in now for name in journal.members])
        gathered = RoundResult(uploads, consensus, k, problem, rows.n_rows, active, answered)
        consensus = np.array(method.aggregate(gathered))
        history.append(consensus)
    return history
