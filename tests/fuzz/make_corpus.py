"""Fuzz every reader, and keep inputs that reach a new branch, and every failing input.

``make fuzz``, or ``python tests/fuzz/make_corpus.py --seconds 60 [READER ...]``. It starts with the seeds and the
corpus, mutates inputs at random, and traces the executed lines of the project. A failing input is written to the corpus
at once, and ``tests/fuzz/test_corpus.py`` fails until the reader is fixed. At the end the corpus is reduced to few and
short inputs that reach all branches; ``failed-*`` files stay.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
import warnings
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

import dpadmm  # noqa: E402
from fuzz.mutations import mutated  # noqa: E402
from fuzz.parsers import CORPUS, READERS, ReaderFailure, outcome  # noqa: E402
from fuzz.seeds import edges, seeds  # noqa: E402

SOURCES = str(Path(dpadmm.__file__).parent)
MOST_BYTES = 12_000
MOST_MEMORY = 6 * 2**30
OWN = {"json/journal": "journal.py", "json/model": "models/file.py"}
"""Readers of which one file alone is followed, since others are for the rest."""

Arc = tuple[str, int, int]


class Branches:
    """``with Branches() as seen``: pairs of consecutively executed lines of the project."""

    def __init__(self, name: str) -> None:
        self._file, self._close = OWN.get(name, ".py"), name.startswith("messages/")
        self.arcs: set[Arc] = set()
        self._last: dict[int, int] = {}

    def __enter__(self) -> Branches:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(SOURCES) or not file.endswith(self._file):
            return None
        frame.f_trace_opcodes = self._close  # so that each part of a condition is a branch
        self._last[id(frame)] = 0
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == ("opcode" if self._close else "line"):
            at = frame.f_lasti if self._close else frame.f_lineno
            self.arcs.add((f"{frame.f_code.co_filename} {frame.f_code.co_name}", self._last[id(frame)], at))
            self._last[id(frame)] = at
        return self._line


def fuzz(
    name: str, begin: list[bytes], always: list[bytes], seconds: float, rng: random.Random, folder: Path
) -> list[str]:
    """Fuzz one reader and update its part of the corpus. Return a sentence for each failure."""
    place = CORPUS / name
    place.mkdir(parents=True, exist_ok=True)
    stored = sorted(place.iterdir())
    cured = {item.read_bytes(): item.name for item in stored if item.name.startswith("failed-")}
    pool: list[tuple[bytes, frozenset[Arc]]] = []
    reached: set[Arc] = set()
    problems: dict[str, str] = {}
    tries, end = 0, time.monotonic() + seconds
    waiting = [*begin, *always, *(item.read_bytes() for item in stored)]
    while waiting or time.monotonic() < end:
        inputs = [each for each, _ in pool] or begin
        data = waiting.pop(0) if waiting else mutated(rng.choice(inputs), inputs, rng)
        if len(data) > MOST_BYTES and data not in begin:
            continue
        tries += 1
        try:
            with Branches(name) as seen:
                outcome(name, data, folder)
        except ReaderFailure as problem:
            what = str(problem)[:300]
            if _kind(problem) not in problems:
                problems[_kind(problem)] = what
                (place / f"failed-{_digest(data)}").write_bytes(data)
            continue
        if seen.arcs - reached:
            reached |= seen.arcs
            pool.append((data, frozenset(seen.arcs)))
    for item in stored:
        if not item.name.startswith("failed-"):
            item.unlink()
    corpus = [data for data in {*_fewest(pool), *always} if data not in cured]
    for data in corpus:
        (place / _digest(data)).write_bytes(data)
    size = sum(path.stat().st_size for path in place.iterdir())
    sys.stdout.write(f"{name}: {tries:,} inputs, {len(reached):,} branches, {len(corpus)} files kept, {size:,} bytes\n")
    return [f"{name}: {what}" for what in problems.values()]


def _kind(problem: ReaderFailure) -> str:
    """Return the identity of a failure: failures of the same type at the same line are one."""
    trace, where = (problem.__cause__ or problem).__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(SOURCES):
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(problem.__cause__).__name__} {where}"


def _fewest(pool: list[tuple[bytes, frozenset[Arc]]]) -> list[bytes]:
    """Return a few short inputs that reach everything that the pool reaches: greedily, those with most new branches."""
    left = set().union(*(arcs for _, arcs in pool))
    chosen = []
    while left:
        best = max(pool, key=lambda item: (len(item[1] & left) / (50 + len(item[0])), -len(item[0]), item[0]))
        chosen.append(best[0])
        left -= best[1]
    return chosen


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:12]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--seconds", type=float, default=30.0, help="of fuzzing, for each reader")
    parser.add_argument("--seed", type=int, default=None, help="of the changes (default: another each time)")
    chosen = parser.parse_args()
    if unknown := [reader for reader in chosen.readers if reader not in READERS]:
        parser.error(f"there is no reader {unknown[0]}; there are {', '.join(READERS)}")
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    rng, begin, always = random.Random(chosen.seed), seeds(), edges()
    problems = []
    for name in chosen.readers or READERS:
        with tempfile.TemporaryDirectory() as folder:
            problems += fuzz(name, begin[name], always.get(name, []), chosen.seconds, rng, Path(folder))
    for problem in problems:
        sys.stdout.write(f"FAILED {problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
