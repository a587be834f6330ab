"""How good is ``auto`` on many data sets, and where is it not? ``python benchmarks/accuracy.py [--quick]``: hours.

Runs what is missing, data set by data set; then writes the table of all runs and the page ``accuracy.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import suite
from dpadmm._base.errors import DataError, DpadmmError, StudyError
from dpadmm.cli.reproduce import RESULTS, run_with_progress
from dpadmm.cli.screen import echo_json, say, say_path, show_table
from dpadmm.reporting.run_folder import write_text
from suite import CONTENDERS, Line
from suite_page import page

LINES, PEERS, PAGE = "accuracy.csv", "peers.csv", "accuracy.md"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--quick", action="store_true", help="small data sets, one ε, 3 splits")
    parser.add_argument("--repeats", type=int, help="random splits of each run (default: 10)")
    parser.add_argument("--only", default="", help="make the runs of these contenders again: auto")
    parser.add_argument("--sets", default="", help="these data sets: adult,flights")
    parser.add_argument("--workers", type=int, help="processes (default: one for each core)")
    parser.add_argument("--overwrite", action="store_true", help="start again")
    parser.add_argument("--json", action="store_true")
    try:
        run_suite(parser.parse_args(words))
    except DpadmmError as error:
        sys.exit(f"error: {error}")


def run_suite(chosen: argparse.Namespace) -> None:
    folder, again = chosen.output, _names(chosen.only)
    for name in again:
        if name not in CONTENDERS:
            raise StudyError(f"--only: there is no {name!r} in the suite; there are {', '.join(CONTENDERS)}")
    how = {**(suite.QUICK if chosen.quick else {}), **({"splits": chosen.repeats} if chosen.repeats else {})}
    lines: list[Line] = []
    for entry in suite.sets(_names(chosen.sets), quick=chosen.quick):
        place = folder / entry.name
        try:
            dataset = suite.load(entry)
        except DataError as error:
            if not chosen.json:
                say(f"{entry.name} is left out: {error}")
            continue
        if again and not chosen.overwrite and (place / RESULTS).exists():
            suite.forget(place / RESULTS, again)
        if not chosen.json:
            say(f"{entry.name}: {dataset.n_rows} rows × {dataset.n_features} features")
        options = {"workers": chosen.workers, "overwrite": chosen.overwrite, "quiet": chosen.json}
        results = run_with_progress(suite.grid(entry, **how), dataset, place, names=again or None, **options)
        lines += suite.lines_of(entry, results)
    if not lines:
        raise DataError("none of the suite's data sets could be had")
    suite.write_lines(folder / LINES, lines)
    peers = suite.read_lines(folder / PEERS) if (folder / PEERS).exists() else []
    write_text(folder / PAGE, page(lines, peers))
    _show(lines, folder, as_json=chosen.json)


def _names(text: str) -> Sequence[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _show(lines: Sequence[Line], folder: Path, *, as_json: bool) -> None:
    found = suite.scores(lines)
    lost = suite.behind(found)
    files = [folder / LINES, folder / PAGE]
    if as_json:
        cells = [{**vars(each.place), "best": each.best, "gap": each.gap, "error": each.error} for each in lost]
        echo_json({"cells": len(found), "behind": cells, "files": [str(path) for path in files]})
        return
    say(
        f"auto is behind the best of the rest by more than one standard error in {len(lost)} of {len(found)} cells",
    )
    if lost:
        rows = []
        for each in lost[:20]:
            place = f"{each.place.set}, {each.place.agents} agents, ε = {each.place.epsilon:g}"
            best = f"{100 * each.theirs:.2f} {CONTENDERS[each.best].title}"
            rows.append((place, f"{100 * each.mine:.2f}", best, f"{100 * each.gap:.2f} ± {100 * each.error:.2f}"))
        show_table(("", "auto", "best of the rest", "behind by"), rows)
    for path in files:
        say_path(str(path))


if __name__ == "__main__":
    main()
