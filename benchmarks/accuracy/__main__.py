"""``python -m benchmarks.accuracy``: the accuracy of ``auto`` and of the other methods on many data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from typer import Option, Typer

from benchmarks.accuracy import suite as accuracy
from benchmarks.accuracy.page import page
from benchmarks.accuracy.suite import CONTENDERS, Line
from dpadmm.cli import run_app
from dpadmm.cli.console import AsJson, echo, echo_json, show
from dpadmm.errors import DataError, StudyError
from dpadmm.rendering import Column, Paragraph, Rendering, Table
from dpadmm.training.run_folder import write_text
from reproduction.__main__ import RESULTS, Restart, Scheduler, Workers, run_with_progress

LINES, PEERS, PAGE = "accuracy.csv", "peers.csv", "accuracy.md"
app = Typer(name="accuracy", add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run_suite(
    folder: Path = Option(Path("runs/accuracy"), "--output", "-o", help="Folder for results, table and page."),
    quick: bool = Option(False, "--quick", help="Small data sets, one ε, 3 splits."),
    repeats: int | None = Option(None, min=1, help="Random splits of each run.", show_default="10"),
    only: str | None = Option(None, help="Repeat the runs of these methods: auto"),
    sets: str | None = Option(None, help="Only these data sets: adult,flights"),
    workers: Workers = None,
    scheduler: Scheduler = None,
    overwrite: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Run the missing runs of every data set, then write the table of all runs and the page. Takes hours."""
    again = _names(only)
    for name in again:
        if name not in CONTENDERS:
            raise StudyError(f"--only: there is no {name!r} in the suite; there are {', '.join(CONTENDERS)}")
    entries = accuracy.sets(_names(sets), quick=quick)
    chosen = {**(accuracy.QUICK if quick else {}), **({"splits": repeats} if repeats else {})}
    lines: list[Line] = []
    for entry in entries:
        grid = accuracy.grid(entry, **chosen)
        place = folder / entry.name
        try:
            dataset = accuracy.load(entry)
        except DataError as error:
            if not as_json:
                echo(f"{entry.name} is left out: {error}")
            continue
        if again and not overwrite and (place / RESULTS).exists():
            accuracy.forget(place / RESULTS, again)
        if not as_json:
            echo(f"{entry.name}: {dataset.n_rows} rows × {dataset.n_features} features")
        results = run_with_progress(
            grid,
            dataset,
            place,
            names=again or None,
            workers=workers,
            scheduler=scheduler,
            overwrite=overwrite,
            quiet=as_json,
        )
        lines += accuracy.lines_of(entry, results)
    if not lines:
        raise DataError("none of the suite's data sets could be had")
    accuracy.write_lines(folder / LINES, lines)
    peers = accuracy.read_lines(folder / PEERS) if (folder / PEERS).exists() else []
    write_text(folder / PAGE, page(lines, peers))
    _show(lines, folder, as_json=as_json)


def _names(text: str | None) -> Sequence[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _show(lines: Sequence[Line], folder: Path, *, as_json: bool) -> None:
    found = accuracy.scores(lines)
    lost = accuracy.behind(found)
    files = [folder / LINES, folder / PAGE]
    if as_json:
        cells = [{**vars(each.place), "best": each.best, "gap": each.gap, "error": each.error} for each in lost]
        echo_json({"cells": len(found), "behind": cells, "files": [str(path) for path in files]})
        return
    text = f"auto is behind the best of the rest by more than one standard error in {len(lost)} of {len(found)} cells"
    rows = []
    for each in lost:
        place = f"{each.place.set}, {each.place.agents} agents, ε = {each.place.epsilon:g}"
        best = f"{100 * each.theirs:.2f} {CONTENDERS[each.best].title}"
        rows.append((place, f"{100 * each.mine:.2f}", best, f"{100 * each.gap:.2f} ± {100 * each.error:.2f}"))
    columns = [
        Column("", ""),
        *(Column("", title, align="right") for title in ("auto", "best of the rest", "behind by")),
    ]
    table = [Table(columns, rows, max_rows=20)] if rows else []
    show(Rendering(body=[Paragraph(text), *table], next_steps=[str(path) for path in files]))


if __name__ == "__main__":
    run_app(app)
