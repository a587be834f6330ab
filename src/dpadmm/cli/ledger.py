"""``dpadmm ledger``: what was given away from a data set, for its owner and the data-protection officer."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dpadmm
from dpadmm.cli.rounding import rounded_down
from dpadmm.cli.rounding import rounded_up as rounded_up
from dpadmm.cli.screen import say, say_path, table
from dpadmm.errors import DataError, DpadmmError, StudyError
from dpadmm.files import atomic_file
from dpadmm.privacy.accounting import exact_epsilon, require_delta
from dpadmm.privacy.book import START, Account, Book
from dpadmm.privacy.ledger import DATABASE, MARK, read_ledger
from dpadmm.privacy.statement import Statement, of_account

MEANING = (
    "ε is exact, for each person in this data set with all the rows that one may have, replace-one "
    "neighbours, against everyone who sees all messages of all studies. Σμ² of several releases adds up; ε "
    "does not."
)
ENDED_EARLY = (
    "A study that ended early counts in the ledger, and against your limit, with what it released; "
    "its statement charges all rounds that were agreed on, since its readers cannot know why it ended."
)
DELTA = 1e-5
CHECK = (
    "The chain of a record is the SHA-256 of the chain before it (64 zeros at first), a line break, and the "
    "record as a JSON array, as Python's json.dumps writes it: [kind, study, mu_squared, round, digest, seq, "
    "at, content]. The content of a spend is the SHA-256 of its upload."
)

PUBLIC = (
    *("name", "method", "loss", "lipschitz", "shape", "noise_multiplier", "n_rounds", "delta"),
    *("n_rows", "rows_per_person", "hash", "gaps"),
)
"""What is shown and exported of a study's description; above all not the digest of the rows and its salt."""

ledger_app = typer.Typer(
    help="What was given away from a data set: spent, reserved and left, by study.", no_args_is_help=True
)

Folder = Annotated[
    Path, typer.Argument(help="The ledger's folder at the data owner.", show_default=False, metavar="FOLDER")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.", show_default=False)]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        help="δ at which ε is given.",
        show_default="that of the site.toml beside the ledger, or 1e-5",
    ),
]
DUST = Fraction(1, 2**40)
"""A smaller part of a limit than this is what rounding leaves, and is shown as nothing."""


@ledger_app.command("show")
def show(
    folder: Folder,
    delta: Delta = None,
    as_json: Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")] = False,
) -> None:
    """Show what is spent, reserved and left, in all and by study.

    An agent that is running may go on running. Everything is verified before it is shown.
    """
    delta, whose = _delta(folder, delta)
    book = read_ledger(folder)
    if as_json:
        typer.echo(json.dumps(summary(book, delta), indent=2, allow_nan=False))
        return
    console = Console()
    say_path(console, f"Ledger in {folder}")
    console.print(_totals_table(book, delta))
    if book.accounts:
        console.print(_studies_table(book, delta))
    say(console, f"δ = {delta:g} {whose}. {MEANING}")
    if any(_ended_early(account) for account in book.accounts.values()):
        say(console, ENDED_EARLY)
    say_path(console, f"{book.seq} records, all verified. Fingerprint, to note down:\n{book.fingerprint}")


@ledger_app.command("verify")
def verify(folder: Folder) -> None:
    """Check every record, its hash, the rules, the sums and the mark; exit code 0 if all is well, else 2."""
    book = read_ledger(folder)
    studies = f"{len(book.accounts)} {'study' if len(book.accounts) == 1 else 'studies'}"
    say(Console(), f"The ledger is whole: {book.seq} records, {studies}; hashes, rules, sums and mark agree.")
    say_path(Console(), f"Fingerprint: {book.fingerprint}")


@ledger_app.command("export")
def export(
    folder: Folder,
    output: Output,
    delta: Delta = None,
) -> None:
    """Write a JSON file that anyone can check: all records with their hashes, without uploads."""
    delta, _ = _delta(folder, delta)
    book = read_ledger(folder)
    text = json.dumps({**summary(book, delta), **_records(book)}, indent=2, allow_nan=False)
    _write(folder, output, f"{text}\n".encode())
    say_path(Console(), f"Ledger: {output}")


@ledger_app.command("statement")
def statement(
    folder: Folder,
    study: Annotated[
        str, typer.Argument(help="The study: its name, or how its hash begins.", show_default=False)
    ],
    output: Output,
    site: Annotated[str, typer.Option("--site", help="What this site is called in the file.")] = "this site",
) -> None:
    """Write the privacy statement of one study, to sign and to hand on; dpadmm verify checks it."""
    book = read_ledger(folder)
    chosen = chosen_study(book, study)
    stated = of_account(chosen, book.accounts[chosen], site=site, version=dpadmm.__version__)
    _write(folder, output, stated.as_bytes())
    console, account = Console(), book.accounts[chosen]
    say_path(console, f"Statement: {output}")
    if len(account.rounds) < stated.groups[0].releases[0].charged:
        say(console, _both_charges(account, stated))


def chosen_study(book: Book, study: str) -> str:
    """The hash of the study that a name, or the beginning of a hash, means."""
    named = [each for each, account in book.accounts.items() if account.about.get("name") == study]
    found = named or [each for each in book.accounts if each.startswith(study)]
    if len(found) == 1:
        return found[0]
    if not book.accounts:
        raise StudyError("the ledger has no studies yet")
    several = ", ".join(each[:12] for each in (found or book.accounts))
    what = "is more than one study" if found else "is no study of this ledger"
    raise StudyError(f"{study!r} {what}; give how the hash of one of these begins: {several}")


def _write(folder: Path, output: Path, content: bytes) -> None:
    if output.absolute().parent.resolve() == folder.resolve() and output.name.startswith((DATABASE, MARK)):
        raise DataError(f"{output} is a part of the ledger itself; choose another name")
    with atomic_file(output) as out:
        out.write(content)


def summary(book: Book, delta: float) -> dict[str, Any]:
    """The figures that ``show`` shows, for programs."""
    return {
        "delta": delta,
        "totals": {name: _figures(amount, delta) for name, _, amount in _totals(book)},
        "studies": [_study(study, account, delta) for study, account in book.accounts.items()],
        "n_records": book.seq,
        "fingerprint": book.fingerprint,
        "meaning": MEANING,
    }


def _study(study: str, account: Account, delta: float) -> dict[str, Any]:
    times = [account.reservation.at, *(record.at for record in account.rounds.values())]
    return {
        "study": study,
        "about": {key: account.about[key] for key in PUBLIC if key in account.about},
        "state": "closed" if account.closed else "open",
        "gaps_allowed": account.gaps,
        "releases": len(account.rounds),
        "last_round": max(account.rounds, default=0),
        "reserved": _figures(Fraction(account.reservation.mu_squared), delta),
        "spent": _figures(account.spent, delta),
        "enrolled_at": times[0],
        "last_at": times[-1],
    }


def _records(book: Book) -> dict[str, Any]:
    lines, chain = [], START
    for record in book.records:
        chain = record.chain(chain)
        lines.append({**record._asdict(), "chain": chain})
    return {"records": lines, "how_to_check": CHECK, "dpadmm_version": dpadmm.__version__}


def _totals(book: Book) -> list[tuple[str, str, Fraction]]:
    cap, promised = Fraction(book.cap), book.promised
    return [
        ("spent", "released so far", book.spent),
        ("reserved", "reserved by open studies, not yet released", left_in(promised, book.spent)),
        ("promised", "both: when all studies have ended", promised),
        ("left", "left for new studies", left_in(cap, promised)),
        ("cap", "the owner's limit", Fraction(book.cap)),
    ]


def left_in(whole: Fraction, used: Fraction) -> Fraction:
    """What is left of a Σμ²; nothing, where rounding alone left it."""
    left = whole - used
    return left if left > whole * DUST else Fraction(0)


def _delta(folder: Path, given: float | None) -> tuple[float, str]:
    """The δ to show ε at, and whose it is: as asked, or the owner's, whose site.toml is beside the ledger."""
    if given is not None:
        require_delta(given)
        return given, "as you asked"
    path = folder.absolute().parent / "site.toml"
    if path.exists():
        from dpadmm.site import read_site

        try:
            site = read_site(path)
            if site.ledger.resolve() == folder.resolve():
                return site.policy.delta, "is your own, of the site.toml beside the ledger"
        except (DpadmmError, OSError):
            pass  # whatever is wrong with it, the ledger can be shown
    return DELTA, "is as good as any: no site.toml beside the ledger says yours (choose with --delta)"


def _ended_early(account: Account) -> bool:
    return account.closed and account.spent < Fraction(account.reservation.mu_squared) * (1 - DUST)


def _both_charges(account: Account, stated: Statement) -> str:
    (group,) = stated.groups
    charged = sum(each.charged for each in group.releases)
    whole, spent = (
        rounded_up(exact_epsilon(mu, stated.delta)) for mu in (group.person_mu, account.spent**0.5)
    )
    return (
        f"It charges all {charged} rounds that were agreed on, ε {whole} for a person at the study's "
        f"δ = {stated.delta:g}, since its readers cannot know why a study ends; your ledger counts the "
        f"{len(account.rounds)} that were released, ε {spent}."
    )


def _figures(amount: Fraction, delta: float) -> dict[str, float]:
    mu_squared = float(max(Fraction(0), amount))
    return {"mu_squared": mu_squared, "epsilon": exact_epsilon(math.sqrt(mu_squared), delta)}


def _totals_table(book: Book, delta: float) -> Table:
    out = table("", "Σμ²", f"ε at δ = {delta:g}")
    for name, words, amount in _totals(book):
        figures = _figures(amount, delta)
        out.add_row(
            words,
            f"{figures['mu_squared']:.6g}",
            (rounded_down if name == "left" else rounded_up)(figures["epsilon"]),
            end_section=name == "promised",
        )
    return out


def _studies_table(book: Book, delta: float) -> Table:
    out = table("study", "state", "rounds", "Σμ² spent", "of", "ε spent", "of")
    out.columns[0].overflow = "fold"
    for study, account in book.accounts.items():
        spent, most = account.spent, Fraction(account.reservation.mu_squared)
        figures = [_figures(amount, delta) for amount in (spent, most)]
        out.add_row(
            Text(f"{study[:12]} {account.about.get('name', '')}".strip()),
            "closed" if account.closed else "open",
            str(len(account.rounds)),
            *(f"{each['mu_squared']:.4g}" for each in figures),
            *(rounded_up(each["epsilon"]) for each in figures),
        )
    return out
