"""A deployment on one machine: broker, aggregator and one process per site, with real certificates.

Every site has its own part of UCI Adult (or of made-up rows, where that is not available), its own ledger and its
own limits. At the end the demo verifies the statement, the ledgers, and the run itself, which is repeated in this
process. The public study of Adult has d = 104 features, as in the paper: the last value of every category is not
listed and counts as "other".

The sites, whose agents are processes of the installed program, serve tests too.
"""

from __future__ import annotations

import asyncio
import csv
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from logging import Logger
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.statement import cross_checks, read_statement
from dpadmm.data.datasets.adult import COLUMNS, Row, adult_rows
from dpadmm.data.schema import Category, Column, Label, Number, Schema
from dpadmm.engine.loop import PlannedParticipation, train
from dpadmm.engine.noise import ExactNoise, Noise, SecureSumNoise
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import join, make_request
from dpadmm.federation.server.coordinator import Coordinator
from dpadmm.federation.server.journal import Journal, result_of
from dpadmm.federation.server.process import Server, begin
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import until_one_ends
from dpadmm.files.atomic import atomic_file
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, stacked
from dpadmm.models.evaluate import evaluate
from dpadmm.models.file import load_model
from dpadmm.models.model import model_of
from dpadmm.queries.problem import PublicSizes, Rows, make_rows
from dpadmm.sites.site import Site, read_site
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import as_mean
from dpadmm.trusted.guard import EnrolledStudy, enrolled_queries
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.masking import Mask, Masks, members_of
from dpadmm.trusted.private_rows import CheckedRows, ProtectedRows

SITE_TOML = """\
format = "dpadmm-site/1"
ledger = "ledger"

[data]
table = "{table}"
label = "{label}"

[person]
rows = 1

[limits]
epsilon = {epsilon!r}
delta = {delta!r}
methods = ["auto", "dp_admm", "dp_sgd", "statistics", "evaluation"]
losses = ["logistic"]
max_rounds = {max_rounds}
min_rows = 20
"""

SECURE_AGGREGATION = """
[secure_aggregation]
allow = true
min_honest_sites = 2
min_withstood = 1
epsilon_if_others_collude = {epsilon!r}
"""


def new_site(folder: Path, study: Study, *, table: str, epsilon: float) -> Site:
    """Create the ``site.toml`` and the ledger of a site in a folder with a table, with limits for a study."""
    assert study.label is not None
    label, delta, rounds = study.label.column, float(study.training.delta), study.training.planned_rounds
    text = SITE_TOML.format(table=table, label=label, epsilon=float(epsilon), delta=delta, max_rounds=rounds)
    if study.training.min_honest_sites is not None:  # √h times the μ, and some ε to spare
        alone = exact_epsilon(math.sqrt(study.training.min_honest_sites) * mu_from_epsilon(epsilon, delta), delta)
        text += SECURE_AGGREGATION.format(epsilon=min(100.0, round(1.01 * float(alone), 4)))
    (folder / "site.toml").write_text(text, encoding="utf-8")
    site = read_site(folder / "site.toml")
    site.begin()
    return site


def invite(authority: Authority, site: Site, name: str, *, url: str | None = None) -> None:
    """Request, approve and join; the site connects to ``url`` if given."""
    folder = site.path.parent
    invitation = authority.approve(make_request(folder, name))
    join(folder, invitation if url is None else replace(invitation, url=url))


def program() -> list[str]:
    own = Path(sysconfig.get_path("scripts")) / "dpadmm"
    return [str(own)] if own.exists() else [sys.executable, "-c", "from dpadmm.cli import main; main()"]


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


class AgentProcess:
    """A process that runs ``dpadmm site run``; call ``end``."""

    def __init__(self, site: Site, *, environment: dict[str, str] | None = None) -> None:
        self._asked = False
        self._output = site.path.parent / "output.txt"
        with self._output.open("ab") as out:
            self.process = subprocess.Popen(
                [*program(), "site", "run", "--quiet", "--site", str(site.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the parent only, which ends it
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def peak_memory(self) -> float | None:
        """Its peak resident memory in MB; None if the system does not report it."""
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024
        return None

    def kill(self) -> None:
        """Kill it at once, like a power cut."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask it to end, once: a second signal would interrupt its clean-up."""
        if self.running() and not self._asked:
            self._asked = True
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Terminate it, kill it after 20 s, and return its exit code."""
        self.terminate()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


LABEL, CLASSES = "class", ("<=50K", ">50K")
BOUNDS = {
    "age": (17.0, 90.0),
    "fnlwgt": (0.0, 1_500_000.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 4_400.0),
    "hours-per-week": (1.0, 99.0),
}
VALUES = {
    "workclass": ("Government", "Private", "Self-employed"),
    "education": ("College", "Degree", "School"),
    "marital-status": ("Married", "Never-married", "Separated"),
    "occupation": ("Craft", "Office", "Professional", "Service"),
    "relationship": ("Alone", "In-family"),
    "race": ("A", "B", "C"),
    "sex": ("Female", "Male"),
    "native-country": ("Abroad", "Here"),
}
"""Of made-up rows."""
N_MADE_UP = 45_222
HELD_OUT, LEAST_ROWS, SHUFFLED_BY = 5_222, 50, 1
FETCH_SECONDS = 60.0
"""After which the demo goes on with made-up rows."""


def made_up_rows() -> list[Row]:
    """As many rows with Adult's columns, in which the class depends on some of them: for a machine without network."""
    rng = np.random.default_rng(SHUFFLED_BY)
    means = {"age": 39.0, "fnlwgt": 190_000.0, "education-num": 10.0, "hours-per-week": 41.0}
    spreads = {"age": 13.0, "fnlwgt": 100_000.0, "education-num": 2.5, "hours-per-week": 12.0}
    drawn: dict[str, Any] = {}
    for name, (low, high) in BOUNDS.items():
        if name in means:
            drawn[name] = np.clip(rng.normal(means[name], spreads[name], N_MADE_UP).round(), low, high).astype(int)
        else:  # most persons have none
            drawn[name] = (rng.random(N_MADE_UP) < 0.08) * rng.integers(1, int(high), N_MADE_UP)
    for name, values in VALUES.items():
        drawn[name] = np.array(values)[rng.integers(0, len(values), N_MADE_UP)]
    score = 0.4 * (drawn["education-num"] - 10.0) + 0.04 * (drawn["age"] - 39.0) + 0.04 * (drawn["hours-per-week"] - 41)
    score += 1.5 * (drawn["marital-status"] == "Married") + (drawn["occupation"] == "Professional") - 2.5
    drawn[LABEL] = np.where(rng.logistic(score) > 0.0, CLASSES[1], CLASSES[0])
    return [list(map(str, row)) for row in zip(*(drawn[name].tolist() for name in COLUMNS), strict=True)]


def demo_rows(report: Callable[[str], None]) -> tuple[list[Row], str]:
    """The rows of UCI Adult, or made-up ones where it is not available, and what the study is called."""
    try:
        return adult_rows(seconds=FETCH_SECONDS), "income (UCI Adult)"
    except DataError as error:
        report(f"Adult is not available, so the demo uses synthetic rows. {error}")
        return made_up_rows(), "income (synthetic rows)"


def split_rows(rows: Sequence[Row], n_sites: int) -> tuple[list[Row], list[list[Row]]]:
    """Held-out rows, and the others, split evenly and reproducibly between sites."""
    order = np.random.default_rng(SHUFFLED_BY).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    share = (len(rows) - HELD_OUT) // n_sites
    if n_sites < 1 or share < LEAST_ROWS:
        raise StudyError(f"sites must be between 1 and {(len(rows) - HELD_OUT) // LEAST_ROWS}, not {n_sites}")
    ends = [HELD_OUT + share * i for i in range(n_sites + 1)]
    return shuffled[:HELD_OUT], [shuffled[a:b] for a, b in pairwise(ends)]


def adult_study(rows: Sequence[Row], n_sites: int, training: Training, name: str) -> Study:
    return Study(
        name=name,
        schema=Schema(tuple(_column(name, rows) for name in COLUMNS if name != LABEL)),
        label=Label(LABEL, classes=CLASSES),
        training=training,
        max_rows_per_site=None if training.min_honest_sites is None else (len(rows) - HELD_OUT) // n_sites,
    )


def with_keys(draft: Study, sites: Mapping[str, Site]) -> Study:
    """A study of a draft: with secure aggregation, with keys that its sites made."""
    if draft.training.min_honest_sites is None:
        return draft
    keys = {name: site.make_key().hex() for name, site in sites.items()}
    return replace(draft, roster=tuple(RosterEntry(name, key) for name, key in keys.items()))


def write_table(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="ascii") as out:
        csv.writer(out).writerows([list(COLUMNS), *rows])


def _column(name: str, rows: Sequence[Row]) -> Column:
    if name in BOUNDS:
        return Number(name, BOUNDS[name])
    place = COLUMNS.index(name)
    return Category(name, tuple(sorted({row[place] for row in rows}))[:-1])


@dataclass(frozen=True)
class Replay:
    """The result of a repeated run: ``n_releases`` are in the ledgers, ``n_lost`` of them never arrived."""

    first_difference: int
    """The first round whose consensus differs from the journal; 0 if none does."""
    n_rounds: int
    n_releases: int
    n_late: int
    """Releases that entered a later mean than that of their round."""
    n_lost: int
    noise_scale: float
    """Root mean square of the noise, in units of its promised standard deviation: about 1."""
    n_numbers: int = 1
    """The number of values in ``noise_scale``."""

    @property
    def equal(self) -> bool:
        """Whether every consensus is identical, and the noise has its promised size."""
        spread = 8.0 / np.sqrt(2.0 * max(1, self.n_numbers))
        return self.first_difference == 0 and abs(self.noise_scale - 1.0) <= spread


Repeat = Callable[[Journal, Rows, Sequence[dict[int, Integers]]], list[Floats]]
"""A journal, the rows of its members and their noise by round -> what is broadcast after every round."""


def replay(journal: Journal, sites: Mapping[str, Site], repeat: Repeat | None = None) -> Replay:
    """Repeat a deployed run in this process, with the same noise, and compare every round bit by bit.

    ``noise_i^k = answer_i^k − round(Σ_j g_j(w̃_i^{k−1}) / g)`` is the noise that a site's guard added. It is
    computed from the tables and ledgers of ``sites``, all the members, whose agents must have ended. ``repeat`` is
    for runs in which answers were late or lost, which ``repeated`` knows nothing of.
    """
    study, names = journal.study, journal.members
    parts = [sites[name].rows.encoded(study) for name in names]
    said = {name: _said(sites[name], study, part) for name, part in zip(names, parts, strict=True)}
    entered = entered_in(journal)
    for name, round in entered:
        if round not in said[name].answers:
            text = f"an upload of {name} for round {round} that is not in its ledger"
            raise DataError(f"the journal has {text}")
    reached, done, noise = list(journal.consensus()), journal.rounds_done, [each.noise for each in said.values()]
    if study.terms.masking is not None:
        _check_sums(journal, said)
    again = (repeat or repeated)(journal, _cohort(parts), noise)
    wrong = [k for k, (a, b) in enumerate(zip(again, reached, strict=True), 1) if a.tobytes() != b.tobytes()]
    every = np.concatenate([np.zeros(0), *(numbers.ravel() for each in said.values() for numbers in each.scaled)])
    return Replay(
        first_difference=wrong[0] if wrong else 0,
        n_rounds=done,
        n_releases=sum(map(len, noise)),
        n_late=sum(k > round for (_, round), k in entered.items()),
        n_lost=sum(map(len, noise)) - len(entered),
        noise_scale=float(np.sqrt(np.mean(np.square(every)))) if every.size else 1.0,
        n_numbers=every.size,
    )


def entered_in(journal: Journal) -> dict[tuple[str, int], int]:
    """Site and round of every answer -> the round whose mean or sum it first entered."""
    if journal.study.terms.masking is not None:
        return {(site, k): k for site, rounds in journal.answered().items() for k in rounds}
    return {(each.site, each.round): k for k, each in journal.uploads()}


Answers = dict[int, tuple[Integers, Floats]]
"""Round -> the answer of the guard, before it was masked, and the consensus that was requested."""


def _answers(site: Site, study: Study) -> Answers:
    """What a site said, by its ledger, and by its private key where that is masked."""
    masking = study.terms.masking
    keys = [] if masking is None else [key for _, key in masking.roster]
    masks = None if masking is None else Masks(study.hash, site.key_of(masking), keys)
    with site.open_ledger() as ledger:
        past = ledger.transcript(study.hash) if study.hash in ledger.status().accounts else []
    found = {}
    for record, stored in past:
        shape = study.upload_shape(record.round)
        size, end = math.prod(shape), len(stored) - (len(keys) + 7) // 8
        numbers = np.frombuffer(stored, "<i8", size).astype(np.int64)
        if masks is not None:  # x = y − mask; the ledger names a masked answer by the context of its mask
            numbers -= Mask(masks, members_of(stored[end:], len(keys)), bytes.fromhex(record.digest)).numbers(size)
        heard = np.frombuffer(stored[8 * size : end], "<f8").astype(np.float64)
        found[record.round] = numbers.reshape(shape), heard.reshape(study.broadcast_shape)
    return found


class Said(NamedTuple):
    """What a site's guard said by round, the noise in it, and that over its promised standard deviation."""

    answers: dict[int, Integers]
    noise: dict[int, Integers]
    scaled: list[Floats]


def _said(site: Site, study: Study, rows: ProtectedRows) -> Said:
    """The noise is found by repeating the agent's computation."""
    problem, m, checked = study.problem, len(rows.labels), CheckedRows(rows)
    enrolled = EnrolledStudy(study.terms, checked, enrolled_queries(study.terms, checked, site.policy), masks=None)
    method = study.method(m)
    state = method.init(problem, PublicSizes(np.array([m]), study.shape[0]))
    said = Said({}, {}, [])
    for round, (answer, heard) in _answers(site, study).items():
        point = np.array(method.parameters(state, heard, round=round)[0])
        asked = enrolled.query_at(round)
        total = enrolled.rows.total(asked.statistic, point, asked.grid)
        said.answers[round], said.noise[round] = answer, answer - total
        said.scaled.append(said.noise[round] / asked.grid.noise_scale(asked.release.noise_multiplier, asked.shares))
        mean = as_mean(answer, asked.grid)[None]
        state, _ = method.advance(state, mean, heard, round=round, problem=problem)
    return said


def _check_sums(journal: Journal, said: Mapping[str, Said]) -> None:
    """The sum of a round is that of what its members said."""
    answered = journal.answered()
    for round, total in journal.sums().items():
        members = [said[name].answers[round] for name, rounds in answered.items() if round in rounds]
        if not np.array_equal(total, np.sum(members, axis=0)):
            raise DataError(f"the sum of round {round} in the journal is not that of its members' answers")


def _cohort(parts: list[ProtectedRows]) -> Rows:
    together = stacked([clip_rows(each.features) for each in parts])
    labels = [each.labels for each in parts]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in labels])])
    weights = [each.row_weights for each in parts if each.row_weights is not None]
    row_weights = np.concatenate(weights) if weights else None
    return make_rows(together, np.concatenate(labels), offsets=offsets, row_weights=row_weights)


def repeated(journal: Journal, rows: Rows, noise: Sequence[dict[int, Integers]]) -> list[Floats]:
    """What is broadcast after every round by ``train``, the loop of simulations, with the noise of the sites."""
    study, done, masking = journal.study, journal.rounds_done, journal.study.terms.masking
    took_part, aborted_rounds = np.zeros((done, rows.n_agents), dtype=bool), set[int]()
    # a site that vanished from a round, which is aborted, has no noise in it
    source: Noise = ExactNoise(lambda i, round: lambda _, n: noise[i].get(round, np.zeros(n, np.int64)).ravel())
    if masking is None:
        for i, said in enumerate(noise):
            took_part[[round - 1 for round in said if round <= done], i] = True
    else:
        for opening in journal.openings()[:done]:
            took_part[opening.round - 1, list(members_of(opening.members, len(masking.roster)))] = True
        source = SecureSumNoise(source, masking.min_honest_sites, rows.n_rows, masking.max_rows_per_site)
        aborted_rounds = {aborted.round for aborted in journal.aborted_rounds()}
    history: list[Floats] = []
    train(
        journal.method(*rows.n_rows.tolist()),
        study.problem,
        rows,
        n_rounds=done,
        noise=source,
        participation=PlannedParticipation(took_part),
        observers=[lambda view: history.append(np.array(view.broadcast))],
        aborts=aborted_rounds.__contains__,
    )
    return history


@dataclass
class Summary:
    """The results of the demo; times in seconds, memory in MB."""

    study: Study
    n_sites: int
    rows_per_site: int
    accuracy: float = 0.0
    most_frequent: float = 0.0
    epsilon: float = 0.0
    epsilon_if_others_collude: float = 0.0
    releases: int = 0
    records: int = 0
    replay: Replay | None = None
    set_up: float = 0.0
    started: float = 0.0
    rounds: float = 0.0
    median_round: float = 0.0
    checks: float = 0.0
    memory: list[float] = field(default_factory=list)


async def demonstrate(
    n_sites: int,
    training: Training,
    folder: Path,
    log: Logger,
    *,
    report: Callable[[str], None],
    on_start: Callable[[Coordinator], None],
) -> Summary:
    """Set up a deployment in an empty folder, run it and check it; all processes end in any case."""
    began = time.monotonic()
    rows, name = demo_rows(report)
    held_out, parts = split_rows(rows, n_sites)
    draft = adult_study(rows, n_sites, training, name)
    write_table(folder / "held_out.csv", held_out)
    authority = Authority.create(folder / "aggregator", hosts=["localhost"], port=free_port())
    async with AsyncExitStack() as resources:
        sites: dict[str, Site] = {}
        for i, part in enumerate(parts):
            name = f"site-{i + 1:0{len(str(n_sites))}d}"
            (folder / name).mkdir(mode=0o700)
            write_table(folder / name / "table.csv", part)
            sites[name] = new_site(folder / name, draft, table="table.csv", epsilon=draft.epsilon)
            invite(authority, sites[name], name)
            await asyncio.sleep(0)
        study = with_keys(draft, sites)
        summary = Summary(study, n_sites, len(parts[0]))
        for site in sites.values():
            accept(site, study)
            await asyncio.sleep(0)
        journal = begin(authority, study, None)
        broker = Broker(authority)
        broker.start()
        resources.callback(broker.stop)
        summary.set_up = time.monotonic() - began
        report(f"created certificates, {n_sites} sites and the broker in {summary.set_up:.1f} s")
        agents = {name: AgentProcess(site) for name, site in sites.items()}
        resources.callback(_end, list(agents.values()))
        starting = time.monotonic()
        await until_one_ends(Server(authority, journal, log).run(on_start), _while_all_live(agents))
        summary.started = time.monotonic() - starting
        summary.memory = [mb for agent in agents.values() if (mb := agent.peak_memory()) is not None]
        for agent in agents.values():
            agent.terminate()
        for name, agent in agents.items():
            if agent.end() != 0:
                raise DPADMMError(f"{name}: its process did not end normally: {agent.output.strip()[-300:]}")
    report("all processes have ended; checking the results")
    checking = time.monotonic()
    _check(summary, journal, sites, folder)
    summary.checks = time.monotonic() - checking
    return summary


async def _while_all_live(agents: dict[str, AgentProcess]) -> None:
    """Fail as soon as the process of a site ends."""
    while True:
        for name, agent in agents.items():
            if not agent.running():
                raise DPADMMError(f"{name}: its process ended: {agent.output.strip()[-300:]}")
        await asyncio.sleep(0.5)


def _end(agents: list[AgentProcess]) -> None:
    for agent in agents:
        agent.terminate()
    for agent in agents:
        agent.end()


def _check(summary: Summary, path: Path, sites: dict[str, Site], folder: Path) -> None:
    """Check the model, the statement, the ledgers and the repeated run, or raise an error."""
    with Journal.open(path, read_only=True) as journal:
        result, answered, seconds = result_of(journal), journal.answered(), journal.seconds()
        summary.replay = replay(journal, sites)
    summary.median_round, summary.rounds = statistics.median(seconds), sum(seconds)
    summary.started -= summary.rounds
    model = folder / "model.dpadmm"
    model_of(result).save(model)
    measured = evaluate(load_model(model), folder / "held_out.csv").figures
    summary.accuracy = float(measured["accuracy"] or 0.0)
    summary.most_frequent = float(measured["most_frequent_class"] or 0.0)
    with atomic_file(folder / "model.statement.json") as out:
        out.write(result.statement.as_bytes())
    cross_checks(read_statement(folder / "model.statement.json"))
    summary.epsilon, summary.epsilon_if_others_collude = (
        result.privacy.epsilon,
        result.privacy.epsilon_if_others_collude,
    )
    for name, site in sites.items():
        ledger = read_ledger(site.ledger)  # verifies every record
        account = ledger.accounts[summary.study.hash]
        spent = summary.study.terms.plan.tally(account.rounds)
        price = sum(n * Fraction(site.policy.release_cost(release)) for release, n in spent)
        if account.spent != price or float(account.spent) > ledger.cap:
            raise DPADMMError(f"{name}: the sum in its ledger is not the cost of its answers")
        if len(account.rounds) < len(answered.get(name, ())):
            raise DPADMMError(f"{name}: the journal has answers that are not in its ledger")
        summary.releases += len(account.rounds)
        summary.records += ledger.seq
    if not summary.replay.equal:
        raise DPADMMError(
            f"the run differs from that in this process, first in round {summary.replay.first_difference}, "
            f"with a noise scale of {summary.replay.noise_scale:.4f} instead of 1"
        )
