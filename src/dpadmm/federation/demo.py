"""Demo deployment on one machine: broker, server and one process per site, with real certificates.

Every site has its own part of UCI Adult (or of synthetic rows, if Adult is not available), its own ledger and its own
limits. At the end the demo verifies the privacy report, the ledgers, and the run itself, which is replayed in this
process. The public study of Adult has d = 104 features, as in the paper: the last value of every category is not
listed and counts as "other".
"""

from __future__ import annotations

import asyncio
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from logging import Logger
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.accounting.verification import verify_report
from dpadmm.data.datasets.adult import COLUMNS, Row, adult_rows
from dpadmm.data.schema import Category, Column, Label, Number, Schema
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.local import SiteSubprocess, free_port, invite, new_site, with_keys
from dpadmm.federation.replay import Replay, replay
from dpadmm.federation.server.coordinator import Coordinator
from dpadmm.federation.server.journal import Journal, result_of
from dpadmm.federation.server.process import Server, begin
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import until_one_ends
from dpadmm.files.atomic import atomic_file
from dpadmm.models.evaluate import evaluate
from dpadmm.models.file import load_model
from dpadmm.models.model import model_of
from dpadmm.sites.site import Site
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import read_ledger

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
"""The categories of synthetic rows."""
N_SYNTHETIC = 45_222
HELD_OUT, MIN_ROWS, SEED = 5_222, 50, 1
FETCH_SECONDS = 60.0
"""Time limit for downloading Adult; then the demo uses synthetic rows."""


def synthetic_rows() -> list[Row]:
    """Return synthetic rows with Adult's size and columns, in which the class depends on some of them."""
    rng = np.random.default_rng(SEED)
    means = {"age": 39.0, "fnlwgt": 190_000.0, "education-num": 10.0, "hours-per-week": 41.0}
    spreads = {"age": 13.0, "fnlwgt": 100_000.0, "education-num": 2.5, "hours-per-week": 12.0}
    cells: dict[str, Any] = {}
    for name, (low, high) in BOUNDS.items():
        if name in means:
            cells[name] = np.clip(rng.normal(means[name], spreads[name], N_SYNTHETIC).round(), low, high).astype(int)
        else:  # most persons have none
            cells[name] = (rng.random(N_SYNTHETIC) < 0.08) * rng.integers(1, int(high), N_SYNTHETIC)
    for name, values in VALUES.items():
        cells[name] = np.array(values)[rng.integers(0, len(values), N_SYNTHETIC)]
    score = 0.4 * (cells["education-num"] - 10.0) + 0.04 * (cells["age"] - 39.0) + 0.04 * (cells["hours-per-week"] - 41)
    score += 1.5 * (cells["marital-status"] == "Married") + (cells["occupation"] == "Professional") - 2.5
    cells[LABEL] = np.where(rng.logistic(score) > 0.0, CLASSES[1], CLASSES[0])
    return [list(map(str, row)) for row in zip(*(cells[name].tolist() for name in COLUMNS), strict=True)]


def demo_rows(report: Callable[[str], None]) -> tuple[list[Row], str]:
    """Return the rows of UCI Adult, or synthetic ones if it is not available, and the name of the study."""
    try:
        return adult_rows(seconds=FETCH_SECONDS), "income (UCI Adult)"
    except DataError as error:
        report(f"Adult is not available, so the demo uses synthetic rows. {error}")
        return synthetic_rows(), "income (synthetic rows)"


def split_rows(rows: Sequence[Row], n_sites: int) -> tuple[list[Row], list[list[Row]]]:
    """Return held-out rows, and the others split evenly and reproducibly between sites."""
    order = np.random.default_rng(SEED).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    share = (len(rows) - HELD_OUT) // n_sites
    if n_sites < 1 or share < MIN_ROWS:
        raise StudyError(f"sites must be between 1 and {(len(rows) - HELD_OUT) // MIN_ROWS}, not {n_sites}")
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


def write_table(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="ascii") as out:
        csv.writer(out).writerows([list(COLUMNS), *rows])


def _column(name: str, rows: Sequence[Row]) -> Column:
    if name in BOUNDS:
        return Number(name, BOUNDS[name])
    place = COLUMNS.index(name)
    return Category(name, tuple(sorted({row[place] for row in rows}))[:-1])


@dataclass
class Summary:
    """The results of the demo; times in seconds, memory in MB."""

    study: Study
    n_sites: int
    rows_per_site: int
    accuracy: float = 0.0
    majority_class: float = 0.0
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
    authority = Authority.create(folder / "server", hosts=["localhost"], port=free_port())
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
        processes = {name: SiteSubprocess(site) for name, site in sites.items()}
        resources.callback(_end, list(processes.values()))
        starting = time.monotonic()
        await until_one_ends(Server(authority, journal, log).run(on_start), _while_all_live(processes))
        summary.started = time.monotonic() - starting
        summary.memory = [mb for process in processes.values() if (mb := process.peak_memory()) is not None]
        for process in processes.values():
            process.terminate()
        for name, process in processes.items():
            if process.end() != 0:
                raise DPADMMError(f"{name}: its process did not end normally: {process.output.strip()[-300:]}")
    report("all processes have ended; checking the results")
    checking = time.monotonic()
    _check(summary, journal, sites, folder)
    summary.checks = time.monotonic() - checking
    return summary


async def _while_all_live(processes: dict[str, SiteSubprocess]) -> None:
    """Raise ``DPADMMError`` as soon as the process of a site ends."""
    while True:
        for name, process in processes.items():
            if not process.running():
                raise DPADMMError(f"{name}: its process ended: {process.output.strip()[-300:]}")
        await asyncio.sleep(0.5)


def _end(processes: list[SiteSubprocess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.end()


def _check(summary: Summary, path: Path, sites: dict[str, Site], folder: Path) -> None:
    """Check the model, the privacy report, the ledgers and the replayed run, or raise an error."""
    with Journal.open(path, read_only=True) as journal:
        result, answered, seconds = result_of(journal), journal.answered(), journal.seconds()
        summary.replay = replay(journal, sites)
    summary.median_round, summary.rounds = statistics.median(seconds), sum(seconds)
    summary.started -= summary.rounds
    model = folder / "model.dpadmm"
    model_of(result).save(model)
    measured = evaluate(load_model(model), folder / "held_out.csv").metrics
    summary.accuracy = float(measured["accuracy"] or 0.0)
    summary.majority_class = float(measured["majority_class_accuracy"] or 0.0)
    with atomic_file(folder / "model.privacy.json") as out:
        out.write(result.privacy.to_bytes())
    verify_report(folder / "model.privacy.json")
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
