"""``dpadmm demo --federated`` with real processes and rows, to the end and with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from looping import case

from dpadmm.trusted.ledger import read_ledger


def processes(folder: Path) -> list[int]:
    """Return the ids of all processes that were started with this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.mark.adult
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_small_deployment(tmp_path: Path, cli, aggregation: str) -> None:
    folder = tmp_path / "kept"
    done = cli(
        "demo",
        "--federated",
        "--sites",
        3,
        "--rounds",
        8,
        "--output",
        folder,
        "--aggregation",
        aggregation,
        columns=200,
    )
    assert done.code == 0, done.err
    assert "Identical to a run in one process, bit by bit: yes" in done.out
    assert "3 of 3 intact" in done.out
    assert "d = 104" in done.out
    assert ("if all other sites collude" in done.out) == (aggregation != "plain")
    assert not processes(folder)
    for i in range(1, 4):
        assert len(read_ledger(folder / f"site-{i}" / "ledger").accounts) == 1
    again = cli("demo", "--federated", "--output", folder)
    assert again.code == 2
    assert "exists; choose" in again.err


@pytest.mark.adult
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in /proc")
def test_ctrl_c_ends_all_processes(tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "kept"
    running = subprocess.Popen(
        [*command, "demo", "--federated", "--sites", "2", "--rounds", "100000", "--output", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # CI may ignore it
    )
    try:
        end = time.monotonic() + 60
        while len(processes(folder)) < 4:  # itself, the broker and two agents
            assert time.monotonic() < end
            assert running.poll() is None, running.communicate()
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        running.terminate()
        running.communicate()
        raise
    assert running.returncode == 130, err
    assert b"all processes of the demo have ended" in err
    assert not processes(folder)


def test_invalid_federated_options(tmp_path_factory: pytest.TempPathFactory, cli) -> None:
    for words in [("--sites", 801), ("--sites", 0), ("--rounds", 0), ("--epsilon", "nan")]:
        with case(words):
            tmp_path = tmp_path_factory.mktemp("case")
            done = cli("demo", "--federated", "--output", tmp_path / "new", *words)
            assert done.code == 2
            assert "Invalid value for" in done.err
            assert not (tmp_path / "new").exists()
    for words, text in {
        ("--aggregation", "blind"): "aggregation must be",
        ("--min-honest-sites", 3): "min_honest_sites requires",
        ("--aggregation", "secure", "--method", "dp_admm"): "use auto",
        ("--aggregation", "secure", "--sites", 2): "at least 3 sites",
    }.items():
        with case(words):
            done = cli("demo", "--federated", *words)
            assert done.code == 2
            assert text in done.err
            assert len(done.err.strip().splitlines()) == 1


def test_without_network_the_demo_uses_synthetic_rows(tmp_path: Path, cli, monkeypatch) -> None:
    from cli.test_demo_command import offline

    for name, value in offline(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    done = cli("demo", "--federated", "--sites", 2, "--rounds", 4, columns=200).succeeded()
    assert done.out.startswith("Adult is not available, so the demo uses synthetic rows. Adult could not be fetched")
    assert "DPADMM_ADULT" in done.out
    assert "income (synthetic rows)" in done.out
    assert "Identical to a run in one process, bit by bit: yes" in done.out


def test_synthetic_rows_have_the_columns_bounds_and_a_signal() -> None:
    from dpadmm.data.datasets.adult import COLUMNS
    from dpadmm.federation.demo import BOUNDS, CLASSES, synthetic_rows

    rows = synthetic_rows()
    assert {len(row) for row in rows} == {len(COLUMNS)}
    for name, (low, high) in BOUNDS.items():
        values = [float(row[COLUMNS.index(name)]) for row in rows]
        assert low <= min(values) <= max(values) <= high, name
    rich = [row[-1] == CLASSES[1] for row in rows]
    taught = [float(row[COLUMNS.index("education-num")]) for row in rows]
    assert 0.15 < sum(rich) / len(rich) < 0.45
    assert sum(t for t, r in zip(taught, rich, strict=True) if r) / sum(rich) > sum(taught) / len(taught) + 0.5
