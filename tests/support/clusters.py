"""A Dask cluster of two local worker processes, which tests may kill, and sites whose rows are on it."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from person_tables import PersonTable, person_study

from dpadmm.sites.agent import Agent
from dpadmm.sites.site import Site, read_site
from dpadmm.trusted import discrete_gaussian as exact_noise

STUDY = person_study("logistic")
CELLS = [
    (
        f"p{i % 7}",
        f"{(37 * i) % 100}",
        f"{10 + (13 * i) % 50}",
        ("north", "south", "x")[i % 3],
        "high",
        "yes",
        "",
        "yes",
    )
    for i in range(40)
]
CELLS[9] = ("P3", *CELLS[9][1:-1], "no")  # another spelling of an id in another file, with its own label
CELLS[30] = ("", *CELLS[30][1:-1], "perhaps")
PARTS = ((0, 12), (12, 14), (14, 40))


@contextmanager
def two_workers() -> Iterator[Any]:
    """``LocalCluster`` on loopback. A worker that dies is restarted."""
    distributed = pytest.importorskip("distributed")
    ports = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", **ports) as cluster:
        yield cluster


def kill_workers(cluster: Any, n: int) -> None:
    """Send SIGKILL to n workers."""
    for worker in list(cluster.workers.values())[:n]:
        os.kill(worker.pid, signal.SIGKILL)


class InProcessClient:
    """Run tasks in this process on copies, as a worker does."""

    def __init__(self, scheduler: str) -> None: ...

    def submit(self, function: Any, *arguments: Any) -> Any:
        return pickle.loads(pickle.dumps(function(*pickle.loads(pickle.dumps(arguments)))))

    def gather(self, results: Any, timeout: float | None = None) -> Any:
        return results


def site_in(folder: Path, tables: list[PersonTable], *, scheduler: str | None, k: int = 2, by: bool = True) -> Site:
    """Return a site whose table is a folder of these files, or one file if there is no scheduler."""
    (folder / "rows").mkdir(parents=True, mode=0o700)
    for i, table in enumerate(tables):
        file = Path(table.write(folder))
        (folder / file).rename(folder / "rows" / f"part-{i:03d}{file.suffix}")
    where = {"table": "rows", "scheduler": scheduler} if scheduler else {"table": "rows/part-000.csv"}
    limits = {"epsilon": 8.0, "delta": 1e-5, "methods": ["pgd", "dp_admm"]}
    sections = {
        "data": {**where, "label": "outcome"},
        "person": {"rows": k, **({"column": "id"} if by else {})},
        "limits": {**limits, "losses": ["logistic", "softmax", "squared", "huber"], "max_rounds": 50, "min_rows": 2},
    }
    lines = ['format = "dpadmm-site/2"', 'ledger = "ledger"']
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    (folder / "site.toml").write_text("\n".join(lines) + "\n")
    return read_site(folder / "site.toml")


def three_files(folder: Path, scheduler: str) -> Site:
    tables = [PersonTable(tuple(CELLS[a:b]), "csv", "text") for a, b in PARTS]
    return site_in(folder, tables, scheduler=scheduler)


def uploads(site: Site) -> list[bytes]:
    """Return the uploads of the site's agent in three rounds of a study, with noise that is a function of its scale."""
    with pytest.MonkeyPatch.context() as patch:
        noise = lambda scale, n: np.random.default_rng(scale).integers(-scale, scale, n)  # noqa: E731
        patch.setattr(exact_noise, "discrete_gaussian", noise)
        with site.guard(create=True) as guard:
            agent = Agent(guard, STUDY)
            consensus, uploads = np.zeros(STUDY.broadcast_shape), []
            for round in (1, 2, 3):
                upload = agent.step(round, consensus)
                uploads.append(upload.tobytes())
                consensus = consensus + 0.1 * upload
    return uploads
