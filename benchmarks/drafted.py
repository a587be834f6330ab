"""What drafts reach on real tables: ``python -m benchmarks.drafted RUNS.csv --sets churn lending --agents 1 10 50``.

20% of a table (at most 50,000 rows) are for testing and 5% are public: a study is drafted from them, as ``study new``
does, and trained on the other 75% at ε = 1, δ = 1e-5. A line is one run, with error (root mean square for numbers) and
loss on the test rows; what RUNS.csv has already is not run again.

auto      the draft as it is: training starts from its public rows
private   without them
shuffled  drafted from public rows with shuffled labels: dummy rows
dp_admm   as drafts were before ``auto``: the paper's method with constants (benchmarks/RESULTS.md), numbers scaled by
          their bounds
public    a plain model of the public rows alone
optimum   without privacy: a model of the private rows, all in one place

The set ``adult`` is UCI Adult without rows that lack a value.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.suite import MOST_ROWS
from dpadmm import train
from dpadmm.data.datasets.adult import COLUMNS, adult_rows
from dpadmm.data.datasets.tables import tables
from dpadmm.data.schema import Number
from dpadmm.data.schema_file import ASK
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import DPADMMError
from dpadmm.models.evaluate import evaluate
from dpadmm.queries.problem import Problem, make_rows
from dpadmm.regularizers import L2
from dpadmm.studies.drafts import draft_from_table, study_text
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import Study
from dpadmm.training.train import encode, prior_from

RUN = ("set", "contender", "agents", "split")
Rows = list[list[Any]]


def rows_of(name: str) -> tuple[list[str], Rows]:
    """The declared columns as they are, and the label last."""
    if name == "adult":
        found = adult_rows()
        return [*COLUMNS[:-1], "label"], [found[k] for k in np.random.default_rng(0).permutation(len(found))]
    table = tables()[name]
    columns = table.columns()
    names = [*table.numbers, *table.categories] or [each for each in columns if each != table.label]
    found = [table.label_of(each) for each in columns[table.label]]
    labels = found if table.number is None else columns[table.label]
    kept = np.random.default_rng(0).permutation([k for k, each in enumerate(found) if each is not None])[:MOST_ROWS]
    cells = [["" if (x := columns[each][k]) is None or x != x else x for each in names] for k in kept]
    return [*names, "label"], [[*row, labels[k]] for row, k in zip(cells, kept, strict=True)]


def write(path: Path, names: list[str], rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def drafted(table: Path) -> Study:
    """The study that ``study new`` drafts, with everything confirmed."""
    text = study_text(draft_from_table(table, "label"), table.stem, table.parent)
    file = table.with_suffix(".toml")
    file.write_text(text.replace("public = false", "public = true").replace(f'allow = "{ASK}"', "allow = true"))
    return read_study(file)


def as_before(study: Study) -> Study:
    """With the paper's method and without center and scale, as drafts were before ``auto``."""
    assert study.schema is not None
    columns = [replace(c, center=None, scale=None) if isinstance(c, Number) else c for c in study.schema.columns]
    schema = replace(study.schema, columns=tuple(columns), row_norm=None)
    radius = 10.0 * math.sqrt(len(study.schema.columns))
    classes = {"n_rounds": 200, "method": {"name": "dp_admm", "rho": 0.01, "weight_radius": radius}}
    training = study.training.with_changes(**({"method": "dp_admm"} if study.classes is None else classes))
    origins: Any = {"method": dict.fromkeys(("rho", "weight_radius"), "assumed")}
    return replace(study, schema=schema, public_rows=None, training=training, provenance=origins)


def models(name: str, agents: list[int], split: int, folder: Path) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every run by what it is, and what makes its model."""
    (names, rows), rng = rows_of(name), np.random.default_rng(split)
    test, shown, hidden = np.split(np.array(rows, object)[rng.permutation(len(rows))], [len(rows) // 5, len(rows) // 4])
    write(folder / "test.csv", names, test.tolist())
    private = write(folder / "private.csv", names, hidden.tolist())
    public = write(folder / "public.csv", names, shown.tolist())
    shown[:, -1] = rng.permutation(shown[:, -1])
    study, dummy = drafted(public), drafted(write(folder / "dummy.csv", names, shown.tolist()))
    alone = replace(study, public_rows=None)
    weights = prior_from(study, public).weights
    problem, rows = Problem(study.problem.loss, L2(), 1e-6), encode(study, private)
    optimum = minimizer(problem, make_rows(rows.features, rows.labels))
    for contender, each in {"public": weights, "optimum": optimum}.items():
        yield (name, contender, 0, split), lambda each=each: replace(train(alone, private).model, weights=each)
    every = {"auto": study, "private": alone, "shuffled": dummy, "dp_admm": as_before(study)}
    for n in agents:
        for contender, each in every.items():
            how = partial(train, each, private, n_agents=n, seed=1000 * split + n)
            yield (name, contender, n, split), lambda how=how: how().model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--sets", nargs="+", default=["adult", *tables()])
    parser.add_argument("--agents", nargs="+", type=int, default=[1, 10, 50])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument(
        "--contenders", nargs="+", default=["public", "optimum", "auto", "private", "shuffled", "dp_admm"]
    )
    given = parser.parse_args()
    with given.output.open("a+", newline="") as file:
        file.seek(0)
        done = {tuple(row[name] for name in RUN) for row in csv.DictReader(file)}
        if not file.tell():
            print(*RUN, "error", "loss", sep=",", file=file)
        for name, split in ((name, split) for name in given.sets for split in range(1, given.splits + 1)):
            with tempfile.TemporaryDirectory() as folder, few_public_rows(name, split):
                for run, make in models(name, given.agents, split, Path(folder)):
                    if tuple(map(str, run)) in done or run[1] not in given.contenders:
                        continue
                    found = evaluate(make(), Path(folder, "test.csv")).metrics
                    error = found["rmse"] if "rmse" in found else 1.0 - (found["accuracy"] or 0.0)
                    for out in (file, None):
                        print(*run, f"{error:.5f}", f"{found['loss']:.5f}", sep=",", file=out, flush=True)


@contextmanager
def few_public_rows(name: str, split: int) -> Iterator[None]:
    """A handful of public rows may lack a class, or make a number look like one: a person would correct the draft."""
    try:
        yield
    except DPADMMError as error:
        print(f"{name}, split {split}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
