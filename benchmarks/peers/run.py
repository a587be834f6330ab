"""Other libraries on the rows of the accuracy suite: ``python -m benchmarks.peers.run [opacus] [diffprivlib]``.

Each has an environment of its own in ``.peers`` with pinned versions, and gets the same encoded rows, splits and
agents as ``python -m benchmarks.accuracy``. Lines go to ``peers.csv`` in the suite's folder; run the suite again
for its page.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

from benchmarks.accuracy import suite as accuracy
from dpadmm.training.preparation import PreparedData, prepare

HERE = Path(__file__).resolve().parent
PEERS = {
    "opacus": ["torch==2.13.0", "opacus==1.6.0", "numba==0.68.1", "numpy==2.4.6"],
    "diffprivlib": ["diffprivlib==0.6.6", "scikit-learn==1.6.1", "scipy==1.15.3", "numba==0.68.1", "numpy==2.2.6"],
}
SETS = "compas,churn,pension,mortality,happy,adult"
AGENTS = (1, 10)
HEAD = "set,contender,agents,epsilon,seed,error,loss,setting,total_epsilon"


def environment(name: str, folder: Path) -> Path:
    """The peer's Python, installed the first time."""
    place = folder / name
    python, ready = place / "bin" / "python", place / ".ready"
    wanted = "\n".join(PEERS[name])
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(place, with_pip=True, clear=True, symlinks=True)
        install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *PEERS[name]]
        subprocess.run(install, check=True)
        ready.write_text(wanted)
    return python


def export(entry: accuracy.Entry, splits: int, folder: Path) -> None:
    """The rows of every split and number of agents: ``SET-AGENTS-SEED.npz``."""
    dataset = accuracy.load(entry)
    wanted = {
        (cell.settings.n_agents, cell.settings.seed): cell
        for cell in accuracy.grid(entry, splits=splits).cells(["auto"])
    }
    for (n, seed), cell in wanted.items():
        if n not in AGENTS:
            continue
        save(prepare(dataset, cell.settings), folder / f"{entry.name}-{n}-{seed}.npz")


def save(prepared: PreparedData, path: Path) -> None:
    """Rows by agent, and test rows."""
    rows, test = prepared.rows, prepared.test
    assert test is not None
    np.savez(
        path,
        features=np.asarray(rows.features[rows.order]),
        labels=rows.labels,
        offsets=rows.offsets,
        test_features=np.asarray(test.features[test.index]),
        test_labels=test.labels,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", default=list(PEERS), help="opacus, diffprivlib; default: all")
    parser.add_argument("--sets", default=SETS, help="data sets of the suite with a binary label")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--epsilon", default="1", help="one or several: 0.3,1,3")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    chosen = parser.parse_args()
    for name in chosen.peers:
        if name not in PEERS:
            sys.exit(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    path = chosen.output / "peers.csv"
    chosen.output.mkdir(parents=True, exist_ok=True)
    names = chosen.sets.split(",")
    for name in chosen.peers:
        python = environment(name, chosen.environments.absolute())
        for entry in accuracy.sets(names):
            with tempfile.TemporaryDirectory() as folder:
                export(entry, chosen.splits, Path(folder))
                script = [python, HERE / f"{name}_lines.py", folder, chosen.epsilon, str(accuracy.DELTA)]
                made = subprocess.run(script, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
            before = path.read_text().splitlines()[1:] if path.exists() else []
            kept = [line for line in before if not line.startswith(f"{entry.name},{name}_")]
            path.write_text("\n".join([HEAD, *kept, *made]) + "\n")
            print(f"{name} on {entry.name}: {len(made)} lines in {path}", flush=True)


if __name__ == "__main__":
    main()
