"""Rounds of a deployment on this machine: broker, aggregator and a process for every site, durable ledgers.

``python benchmarks/federation.py [SITES,D ...]``: by default 10 sites at d = 104, 50 sites at d = 104, and
10 sites at d = 100,000, each with local trust and with secure aggregation. Times are of the whole round, from
broadcast to the consensus in the journal.
``python benchmarks/federation.py start``: how long ``dpadmm site run`` takes until it can answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.local import SECURE_AGGREGATION, SITE_TOML, SiteSubprocess, free_port, invite, with_keys
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import Server, begin
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.transport.broker import Broker
from dpadmm.sites.site import Site, read_site
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice, discrete_gaussian

START_LIMIT = 1.5
LIMITS = {(10, 104): 0.050, (50, 104): 0.250, (10, 100_000): 2.0}
MASKED_LIMITS = {(10, 104): 0.090, (50, 104): 0.450, (10, 100_000): 2.0}
MASKED_RATIO = 1.6
"""A round with secure aggregation takes at most so many times as long, with 10 sites at d = 104."""

ROWS = {104: 4_000, 100_000: 40}
SITE = SITE_TOML.format(table="table.npz", label="labels", epsilon=100.0, delta=1e-5, max_rounds=1000)


def new_sites(folder: Path, study: Study, n_sites: int) -> tuple[Authority, Study, list[Site]]:
    """An authority, a study with the keys of its sites, and sites with tables of their own that have accepted it."""
    authority, sites = Authority.create(folder / "hub", hosts=["localhost"], port=free_port()), {}
    d = study.shape[0]
    for i in range(n_sites):
        home = folder / f"site-{i:03d}"
        home.mkdir()
        rows = np.random.default_rng(i).standard_normal((ROWS.get(d, 400), d)).astype(np.float32)
        rows /= 1.01 * np.linalg.norm(rows, axis=1, keepdims=True)
        np.savez(home / "table.npz", features=rows, labels=np.where(rows[:, 0] > 0, 1, -1))
        (home / "site.toml").write_text(SITE + SECURE_AGGREGATION.format(epsilon=100.0))
        sites[home.name] = site = read_site(home / "site.toml")
        site.begin()
        invite(authority, site, home.name)
    study = with_keys(study, sites)
    for site in sites.values():
        accept(site, study)
    return authority, study, list(sites.values())


def new_study(d: int, n_rounds: int, min_honest_sites: int | None = None) -> Study:
    """With secure aggregation, if ``min_honest_sites`` is given."""
    aggregation = {} if min_honest_sites is None else {"aggregation": "secure", "min_honest_sites": min_honest_sites}
    return Study(
        name="benchmark",
        features=tuple(f"x{i + 1}" for i in range(d)),
        classes=(-1, 1),
        training={"epsilon": 5.0, "delta": 1e-5, "n_rounds": n_rounds, "intercept": False, **aggregation},
        max_rows_per_site=None if min_honest_sites is None else ROWS.get(d, 400),
    )


def measure_start(repeats: int = 7) -> None:
    """Start an agent several times, and wait until it has enrolled its study and is connected."""
    walls, cpus = [], []
    with tempfile.TemporaryDirectory() as place:
        authority, _, (site,) = new_sites(Path(place), new_study(104, 100), 1)
        broker, log = Broker(authority), site.path.parent / "site.log"
        broker.start()
        try:
            for _ in range(repeats):
                log.unlink(missing_ok=True)
                before, agent = time.perf_counter(), SiteSubprocess(site)
                while not log.exists() or not all(each in log.read_text() for each in ("enrolled", "connected to")):
                    if not agent.running():
                        raise SystemExit(agent.output)
                    time.sleep(0.005)
                walls.append(time.perf_counter() - before)
                ticks = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                cpus.append(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"))
                agent.end()
        finally:
            broker.stop()
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    verdict = "ok" if min(wall, cpu) <= START_LIMIT else "MISS"
    print(f"start of an agent: median {wall:.2f} s, of them {cpu:.2f} s on a CPU; limit {START_LIMIT:g} s: {verdict}")


def measure(n_sites: int, d: int, n_rounds: int, min_honest_sites: int | None = None) -> float:
    """The median seconds of a round."""
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as place, ExitStack() as held:
        authority, study, sites = new_sites(Path(place), new_study(d, n_rounds, min_honest_sites), n_sites)
        journal = begin(authority, study, None)
        started = time.perf_counter()
        agents = [SiteSubprocess(site) for site in sites]
        for agent in agents:
            held.callback(agent.end)
        asyncio.run(Server(authority, journal, logging.getLogger("bench")).run())
        total = time.perf_counter() - started
        memory = max(agent.peak_memory() or 0.0 for agent in agents)
        for agent in agents:
            agent.terminate()
        with Journal.open(journal, read_only=True) as kept:
            seconds = kept.seconds()
    noise = _noise_seconds(study, ROWS.get(d, 400))
    limit, usual = (LIMITS if min_honest_sites is None else MASKED_LIMITS).get((n_sites, d)), statistics.median(seconds)
    verdict = "" if limit is None else f", limit {limit:g} s: {'ok' if usual <= limit else 'MISS'}"
    print(
        f"{n_sites} sites, d = {d:,}, {study.training.aggregation}, {n_rounds} rounds: median {usual * 1e3:.1f} ms, "
        f"90% {np.quantile(seconds, 0.9) * 1e3:.1f} ms{verdict}"
    )
    print(
        f"    exact noise alone {noise * 1e3:.1f} ms per site ({noise * n_sites / 2 * 1e3:.1f} on 2 cores); "
        f"start to end {total:.1f} s; peak memory of an agent {memory:.0f} MB"
    )
    return usual


def _noise_seconds(study: Study, n_rows: int) -> float:
    grid = Lattice(float(study.problem.loss.lipschitz), study.shape[0], n_rows)
    scale, times = grid.noise_scale(study.noise_multiplier), []
    for _ in range(5):
        before = time.perf_counter()
        discrete_gaussian(scale, grid.size)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


if __name__ == "__main__":
    if sys.argv[1:] == ["start"]:
        measure_start()
        sys.exit()
    asked = [tuple(map(int, word.split(","))) for word in sys.argv[1:]] or list(LIMITS)
    for n_sites, d in asked:
        n_rounds = 100 if d < 1000 else 15
        local, masked = (
            measure(n_sites, d, n_rounds, min_honest_sites) for min_honest_sites in (None, max(2, n_sites // 2))
        )
        ok = "" if (n_sites, d) != (10, 104) else f": {'ok' if masked <= MASKED_RATIO * local else 'MISS'}"
        print(f"    a round with secure aggregation takes {masked / local:.2f} times as long{ok}")
