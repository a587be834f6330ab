"""``dpadmm study``: write the public contract of a run, and see what it asks of every agent."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dpadmm.cli.ledger import rounded_up
from dpadmm.cli.screen import say, say_path, table
from dpadmm.errors import StudyError
from dpadmm.files import atomic_file
from dpadmm.privacy.accounting import exact_epsilon, paper_epsilon
from dpadmm.study import Study, read_study

study_app = typer.Typer(help="A study: the public contract of a run.", no_args_is_help=True)

StudyFile = Annotated[
    Path, typer.Argument(help="The study's TOML file.", show_default=False, metavar="STUDY")
]
Json = Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")]


@study_app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False, metavar="FILE")],
) -> None:
    """Write an example of a study with comments, to be changed."""
    write_template("study.toml", file)
    console = Console()
    say_path(console, f"Written: {file}")
    say(console, "Change it to what you want to ask; then see what it means:")
    say_path(console, f"  dpadmm study show {file}")


@study_app.command("show")
def show(study_file: StudyFile, as_json: Json = False) -> None:
    """Check a study, and show its hash, its model, its noise and what it costs."""
    study = read_study(study_file)
    if as_json:
        typer.echo(json.dumps(figures(study), indent=2, allow_nan=False))
        return
    console = Console()
    say(console, study.name, style="bold")
    say_path(console, f"Hash, which every agent pins:\n{study.hash}")
    out = table("", "")
    for words, value in _facts(study):
        out.add_row(words, Text(value))  # as it is: names of columns may look like markup
    out.show_header = False
    out.columns[1].justify = "left"
    out.columns[1].overflow = "fold"
    console.print(out)
    for sentence in in_words(study):
        say(console, sentence)


def figures(study: Study) -> dict[str, Any]:
    """All about a study, for programs."""
    terms = study.terms
    mu = math.sqrt(terms.n_rounds) / terms.noise_multiplier
    return {
        "hash": study.hash,
        "study": study.as_json(),
        "shape": list(study.shape),
        "lipschitz": terms.lipschitz,
        "noise_multiplier": terms.noise_multiplier,
        "n_rounds": terms.n_rounds,
        "delta": terms.delta,
        "epsilon_exact": exact_epsilon(mu, terms.delta),
        "epsilon_paper": paper_epsilon(terms.noise_multiplier, terms.n_rounds, terms.delta),
        "mu_squared": terms.n_rounds * (1.0 / terms.noise_multiplier) ** 2,
    }


def in_words(study: Study) -> list[str]:
    """What is asked of an agent."""
    terms, (d, p) = study.terms, study.shape
    often = "at most once in each of the" if study.absences else "once in each of the"
    numbers = f"{d * p} numbers" if d * p > 1 else "one number"
    return [
        f"Asked of an agent, {often} {terms.n_rounds} rounds: the mean gradient of all its rows at a point "
        f"that is sent to it, with noise ({numbers}). Nothing else of the rows is asked for.",
        "The ε is for each person with one row at one agent, against everyone who sees all messages of this "
        "study. With k rows μ is k times as large; every owner's own limits and ledger decide.",
    ]


def _facts(study: Study) -> list[tuple[str, str]]:
    settings, numbers = study.settings, figures(study)
    columns = ", ".join(study.features[:12])
    more = f" and {len(study.features) - 12} more" if len(study.features) > 12 else ""
    classes = "a number" if study.classes is None else ", ".join(map(str, study.classes))
    if study.classes is None and study.problem.loss.task == "binary":
        classes = "-1, 1"
    origin = ", ".join(f"{name}: {text}" for name, text in sorted(study.provenance.items()))
    return [
        ("columns", f"{len(study.features)}: {columns}{more}"),
        ("label", classes),
        ("model", f"{settings.loss} loss, {settings.regularizer} regularizer"),
        (
            "weights",
            f"{study.shape[0]} × {study.shape[1]}{', one for a constant' if settings.intercept else ''}",
        ),
        ("method", settings.method),
        ("rounds", f"{settings.n_rounds}{', some may be missed' if study.absences else ''}"),
        ("bound of a row's gradient c1", f"{numbers['lipschitz']:g}"),
        ("noise multiplier z", f"{numbers['noise_multiplier']:.4f}"),
        ("δ", f"{numbers['delta']:g}"),
        ("total ε, exact", rounded_up(numbers["epsilon_exact"])),
        ("total ε, paper's moments bound", rounded_up(numbers["epsilon_paper"])),
        ("constants", origin or "all of them the defaults"),
    ]


def write_template(name: str, path: Path) -> None:
    """A packaged example, to a file that must be new."""
    if path.exists() or path.is_symlink():
        raise StudyError(f"{path} exists and is left as it is; choose another name")
    with atomic_file(path) as out:
        out.write(files("dpadmm").joinpath("templates", name).read_bytes())
