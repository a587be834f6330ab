"""``dpadmm agent``: what a data owner does, from the first file to taking part in a study."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpadmm.cli import agent_network
from dpadmm.cli.columns import counts_of, show_survey
from dpadmm.cli.costs import amount, epsilon_left, epsilon_of, left_of, limits, limits_table
from dpadmm.cli.decisions import accept, decline
from dpadmm.cli.decisions import leave as end_study
from dpadmm.cli.ledger import ENDED_EARLY, chosen_study, rounded_up
from dpadmm.cli.screen import say, say_path
from dpadmm.cli.site_words import checked, doubts, ledger_in_words, limits_in_words, rows_in_words
from dpadmm.cli.study import Json, StudyFile, figures, in_words, write_template
from dpadmm.errors import Refusal, StudyError
from dpadmm.privacy.book import Book
from dpadmm.privacy.ledger import read_ledger
from dpadmm.site import Site, read_site
from dpadmm.site_promises import broken_promises
from dpadmm.study import Study, read_study

agent_app = typer.Typer(
    help="For data owners: your table, your limits, and the studies that you agree to.", no_args_is_help=True
)

SiteFile = Annotated[Path, typer.Argument(help="Your site.toml.", show_default=False, metavar="SITE")]
SiteOption = Annotated[Path, typer.Option("--site", help="Your site.toml.", metavar="SITE")]


@agent_app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(help="A folder of this data set.", show_default=False, metavar="FOLDER")
    ],
) -> None:
    """Write a site.toml with comments, to be filled in. Nothing is overwritten."""
    file = folder / "site.toml"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its ledger, keys and decisions are its owner's
    write_template("site.toml", file)
    console = Console()
    say_path(console, f"Written: {file}")
    say(console, "1. Fill it in: your table, its label, rows of one person, your limits.")
    say_path(console, f"2. See whether it holds:              dpadmm agent check {file}")
    say_path(console, f"3. Begin the ledger, once:            dpadmm agent begin {file}")
    say_path(console, f"4. For every study that you are sent: dpadmm agent review STUDY --site {file}")
    say_path(console, f"5. To take part in it:                dpadmm agent enrol STUDY --site {file}")


@agent_app.command("check")
def check(
    site_file: SiteFile,
    study_file: Annotated[
        Path | None,
        typer.Option("--study", metavar="STUDY", help="Also count what it would clamp, or not know."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read your table; show your limits and what is left of them. For your eyes only.

    With a study: how many cells are beyond its bounds, none of its values, or missing. An agent takes such
    cells as the study says, without a word to anybody: only you can see here whether they are a mistake.
    """
    site, study = _opened(site_file), read_study(study_file) if study_file else None
    persons = site.rows.persons()
    book = _book(site)
    survey = site.rows.survey(study) if study else None
    if as_json:
        counts = {"cells": {**counts_of(survey), "problems": survey.problems}} if survey else {}
        typer.echo(json.dumps(checked(site, persons, book) | counts, indent=2, allow_nan=False))
    else:
        console = Console()
        say_path(console, f"Table: {site.table}")
        for sentence in (*rows_in_words(site, persons), *limits_in_words(site.policy)):
            say(console, sentence)
        say_path(console, f"Ledger: {site.ledger}")
        say(console, ledger_in_words(site.policy, book))
        for worry in doubts(site, persons, book):
            say(console, f"Note: {worry}")
        if study is not None and survey is not None:
            say(console, study.name, style="bold")
            show_survey(console, study, survey)
            for problem in survey.problems:
                say(console, f"Warning: {problem}")
        elif study is not None:
            say(console, "Cells can be counted in .csv and .parquet tables only.")


@agent_app.command("begin")
def begin(site_file: SiteFile) -> None:
    """Begin the ledger of this data set. Refused where there is one: what was spent stays spent."""
    site = _opened(site_file)
    site.begin()
    console = Console()
    say_path(console, f"Begun: {site.ledger}")
    say(console, "Never delete it or put an old copy back: it alone knows what was given away.")


@agent_app.command("review")
def review(
    study_file: StudyFile,
    site_file: SiteOption = Path("site.toml"),
    as_json: Json = False,
    accepted: Annotated[bool, typer.Option("--accept", help="Agree to it: the same as enrol.")] = False,
    declined: Annotated[
        bool, typer.Option("--decline", help="Say no, kept with the date; an enrolled study is left.")
    ] = False,
) -> None:
    """Show what a study would cost you, against your limits and your ledger; accept or decline it.

    Exit code 0: you could enrol it. 2: it would be refused, and why. An agent may be running meanwhile.
    """
    if accepted and declined:
        raise StudyError("a study is accepted or declined, not both")
    study, site = read_study(study_file), _opened(site_file)
    book, refusal, n_rows = read_ledger(site.ledger), None, None
    try:
        n_rows = site.rehearse(study, book).rows.n_rows
    except Refusal as error:
        refusal = error
    if n_rows is None and refusal is not None and refusal.code != "study-unfit" and not declined:
        n_rows = site.rows.persons().n_rows
    lines = limits(study, site.policy, book, n_rows)
    if as_json:
        said = {"code": refusal.code, "text": str(refusal)} if refusal else None
        answer = {"acceptable": refusal is None, "refusal": said, "limits": lines, "study": figures(study)}
        answer["enrolled"] = study.hash in book.accounts
        typer.echo(json.dumps({**answer, "rows": n_rows}, indent=2, allow_nan=False))
    else:
        _show_review(study, site, lines)
    if declined:
        say(Console(stderr=as_json), _declined(study, site, *decline(site, study)))
        return
    if refusal:
        raise refusal
    if accepted:
        book = accept(site, study)
    if not as_json:
        _say_remarks(study, site, book)
        say(Console(), _verdict(study, book))


@agent_app.command("enrol")
def enrol(study_file: StudyFile, site_file: SiteOption = Path("site.toml"), as_json: Json = False) -> None:
    """Agree to a study: pin it to your rows as they are now, and reserve what it costs.

    Doing it again is harmless. The rows must stay as they are until the study has ended.
    """
    study, site = read_study(study_file), _opened(site_file)
    before = read_ledger(site.ledger).accounts
    book = accept(site, study)
    account = book.accounts[study.hash]
    n_rows = account.about["n_rows"]
    reserved, left = Fraction(account.reservation.mu_squared), left_of(site.policy, book.promised)
    if as_json:
        answer = {"study": study.hash, "rows": n_rows, "enrolled_at": account.reservation.at}
        amounts = {"reserved": amount(reserved, site.policy), "left": amount(left, site.policy)}
        typer.echo(json.dumps({**answer, **amounts}, indent=2, allow_nan=False))
        return
    console = Console()
    already = "Already enrolled, and nothing was changed" if study.hash in before else "Enrolled"
    say(console, f"{already}: {study.name}, with {n_rows:,} rows, since {account.reservation.at}.")
    say_path(console, study.hash)
    say(
        console,
        f"Reserved: ε {epsilon_of(reserved, site.policy)} of {rounded_up(site.policy.epsilon)} at "
        f"δ = {site.policy.delta:g}; left for other studies: {epsilon_left(book.promised, site.policy)}.",
    )
    _say_remarks(study, site, book)
    say(console, "Leave the table as it is until the study has ended: changed rows are refused.")


@agent_app.command("leave")
def leave(
    study: Annotated[
        str,
        typer.Argument(
            help="The study's file, its name, or the beginning of its hash.",
            show_default=False,
            metavar="STUDY",
        ),
    ],
    site_file: SiteOption = Path("site.toml"),
) -> None:
    """End a study here: it gets no more answers, and what it reserved and did not use is free again.

    What was released stays spent. A study that was left cannot be enrolled again. A running agent heeds it.
    """
    site = _opened(site_file)
    book = read_ledger(site.ledger)
    chosen = read_study(Path(study)).hash if study.endswith(".toml") else chosen_study(book, study)
    already = book.account(chosen).closed
    book = book if already else end_study(site, chosen)
    account, console = book.accounts[chosen], Console()
    left = "Left before, and nothing was changed" if already else "Left"
    say(console, f"{left}: {account.about.get('name', '')} after {len(account.rounds)} rounds.")
    say_path(console, chosen)
    spent, rest = epsilon_of(account.spent, site.policy), epsilon_left(book.promised, site.policy)
    say(console, f"ε {spent} was spent on it and stays so; left for others: {rest}. {ENDED_EARLY}")


for _command in (agent_network.request, agent_network.join, agent_network.run, agent_network.status):
    agent_app.command(_command.__name__)(_command)


def _say_remarks(study: Study, site: Site, book: Book) -> None:
    for remark in (*site.rows.remarks(study), *broken_promises(site.policy, book)):
        say(Console(), f"For your eyes only: {remark}")


def _opened(path: Path) -> Site:
    site = read_site(path)
    for worry in site.worries():
        typer.echo(f"dpadmm: warning: {worry}", err=True)
    return site


def _book(site: Site) -> Book | None:
    """The ledger, None where it is not begun."""
    try:
        return read_ledger(site.ledger)
    except Refusal as refusal:
        if refusal.code != "ledger-missing":
            raise
        return None


def _show_review(study: Study, site: Site, lines: list[dict[str, Any]]) -> None:
    console = Console()
    say(console, study.name, style="bold")
    say_path(console, study.hash)
    say(console, in_words(study)[0])
    console.print(limits_table(site.policy, lines))
    k = site.policy.unit.rows
    who = "with one row" if k == 1 else f"with up to {k} rows"
    cost = next(line["asked"] for line in lines if line["limit"] == "epsilon")
    say(
        console,
        f"It would cost each person {who} here ε {rounded_up(cost)} at your δ = {site.policy.delta:g}; "
        "Σμ² of several studies adds up, ε does not.",
    )


def _declined(study: Study, site: Site, book: Book, changed: bool) -> str:
    account = book.accounts.get(study.hash)
    if account is None:
        said = "Declined, and kept with the date" if changed else "Declined before, and nothing was changed"
        return f"{said}. Nothing was reserved."
    said = "Declined. It was enrolled, and is left now" if changed else "Left before, and nothing was changed"
    spent, rest = epsilon_of(account.spent, site.policy), epsilon_left(book.promised, site.policy)
    return (
        f"{said}: it gets no more answers, and cannot be enrolled again. ε {spent} was spent on it in "
        f"{len(account.rounds)} rounds and stays so; nothing more is reserved. Left for others: {rest}."
    )


def _verdict(study: Study, book: Book) -> str:
    account = book.accounts.get(study.hash)
    if account is None:
        return "Within your limits: you could enrol it. Nothing was changed."
    done = f"{len(account.rounds)} of {study.settings.n_rounds} rounds are answered"
    return f"Enrolled since {account.reservation.at}: {done}."
