"""``dpadmm site join``: the settings of a new site, its ledger and key, and the certificate of a server."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from dpadmm.cli.console import echo, show
from dpadmm.cli.site_budget import HERE, SiteOption, open_site, site_path, warn
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.parameters.suggestions import near_name
from dpadmm.rendering import Block, Paragraph, Rendering
from dpadmm.sites.setup import SiteSettings, columns_of, problem_text, table_problems
from dpadmm.sites.site import Site, read_site, site_from
from dpadmm.trusted.ledger import MARK, read_ledger

if TYPE_CHECKING:
    from dpadmm.federation.identity.joining import PendingJoin
    from dpadmm.federation.identity.tokens import JoinToken

DEFAULTS = SiteSettings(table=Path())
CONNECT_SECONDS = 15.0
"""Seconds for which a new site tries to connect. The broker accepts its certificate after a moment."""


def join(
    token: str | None = Argument(
        None, help="Join token from the study coordinators; - reads it from standard input.", metavar="TOKEN"
    ),
    site_file: SiteOption = HERE,
    table: Path | None = Option(None, help="Your table, for a new site.toml.", metavar="TABLE"),
    label: str | None = Option(None, help="Column to predict.", metavar="COLUMN"),
    person: str | None = Option(None, help="Column that identifies a person.", metavar="COLUMN"),
    rows_per_person: int | None = Option(None, help="Maximum number of rows of one person.", show_default="1"),
    epsilon: float | None = Option(
        None, help="Limit: total privacy loss of any one person, over all studies.", show_default=f"{DEFAULTS.epsilon}"
    ),
    delta: float | None = Option(
        None, help="The δ of the limit, well below 1 / number of persons.", show_default=f"{DEFAULTS.delta}"
    ),
    max_rounds: int | None = Option(None, help="Limit: rounds of one study.", show_default=f"{DEFAULTS.max_rounds}"),
    min_rows: int | None = Option(
        None, help="Limit: refuse studies if the table has fewer rows.", show_default=f"{DEFAULTS.min_rows}"
    ),
    manual: str | None = Option(
        None, "--manual", help="Without a token: create the key of the site NAME and a request file.", metavar="NAME"
    ),
    invitation: Path | None = Option(
        None, "--invitation", help="After --manual: accept this invitation from the server.", metavar="FILE"
    ),
    certificate: Path | None = Option(
        None,
        "--certificate",
        help="Certificate from your own CA for network/request.csr, with intermediate ones (PEM).",
        metavar="FILE",
    ),
    fingerprint: str | None = Option(
        None, help="With --invitation: expected fingerprint of the server.", metavar="FINGERPRINT"
    ),
    yes: bool = Option(False, "--yes", help="With --invitation: confirm that you have compared the fingerprint."),
) -> None:
    """Join a server with the token from its study coordinators.

    Without a site.toml, the command asks for your table and limits, or takes them from the options, and writes the
    file. It checks the table, creates the ledger and the key of a new site, has the key certified and connects. The
    key never leaves this machine. Repeat the command if it was interrupted.

    Organisations that forbid tokens use --manual NAME, send the request file, compare fingerprints by telephone, and
    accept the --invitation that comes back.
    """
    if sum(each is not None for each in (token, manual, invitation)) != 1:
        raise StudyError("give one of: the join token, --manual NAME, or --invitation FILE")
    path = site_path(site_file)
    given = {
        "table": table, "label": label, "person": person, "rows_per_person": rows_per_person, "epsilon": epsilon,
        "delta": delta, "max_rounds": max_rounds, "min_rows": min_rows,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if token is not None:
        return _join_with_token(
            path, typer.get_text_stream("stdin").read() if token == "-" else token, given, certificate
        )
    if given:
        raise StudyError("--table, --label and the limits belong to a join token; else write them to site.toml")
    if manual is not None:
        return _request_invitation(path, manual, certificate)
    assert invitation is not None
    return _accept_invitation(path, invitation, fingerprint, confirmed=yes)


# With a token


def _join_with_token(path: Path, words: str, given: dict[str, Any], certificate: Path | None) -> None:
    from dpadmm.federation.health import command_line
    from dpadmm.federation.identity.join_client import TokenError, find_server
    from dpadmm.federation.identity.joining import PendingJoin
    from dpadmm.federation.identity.private_files import read_short
    from dpadmm.federation.identity.tokens import read_token

    token = read_token(words)
    pending = PendingJoin(path.parent)
    pending.check(token.name, token.ca_digest)
    server = find_server(token)
    site, text = _settings(path, given, token)
    _check_table(site)
    is_new_folder = not path.parent.exists()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # its ledger, keys and decisions are private
    try:
        request = pending.request(token.name, None if certificate is None else read_short(certificate))
        invitation = server.redeem(token, request)
    except TokenError:
        pending.discard()
        if is_new_folder:
            path.parent.rmdir()
        raise
    created = _store(site, text, pending, invitation)
    url = _connection(site)
    lines = [f"Created: {name}" for name in created]
    if site.ledger.name in [Path(name).name for name in created]:
        lines[-1] += ". Never delete it: it is the only record of the spent budget."
    show(
        Rendering(
            next_steps=[
                *lines,
                f"Joined {server.url} as {token.name}. {url}",
                "Fingerprint of your key, for an optional check with the study coordinators by telephone:",
                request.fingerprint,
                f"Next: {command_line('site', 'run', '--site', path)}",
            ]
        )
    )


def _settings(path: Path, given: dict[str, Any], token: JoinToken) -> tuple[Site, str | None]:
    """Return the site of an existing ``site.toml``, or of the options and answers, and the text of a new file."""
    if path.exists():
        if given:
            raise StudyError(f"{path} exists: omit {_flags(given)}, and change the file instead")
        return open_site(path), None
    if "table" not in given and not os.isatty(0):
        raise StudyError(
            f"{path}: there is no such file; give --table and, if a column is to be predicted, --label, or write the "
            "file, or run the command in a terminal"
        )
    if not os.isatty(0) and not given.keys() & {"person", "rows_per_person"}:
        raise StudyError(
            "give --person COLUMN, which identifies a person, or --rows-per-person N, your guarantee that no person "
            "has more rows"
        )
    settings = SiteSettings(**given) if not os.isatty(0) else _ask(given, token)
    text = settings.text(path.parent)
    return site_from(tomllib.loads(text), path), text


def _flags(given: dict[str, Any]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def _ask(given: dict[str, Any], token: JoinToken) -> SiteSettings:
    """Ask for the settings that are not given. Each question explains its default; Enter takes it."""
    echo(f"Joining as {token.name}. Enter accepts the value in brackets. Later changes: edit site.toml.")
    answers = dict(given)
    if "table" not in answers:
        echo("Your table: a .csv, .parquet or .arrow file, a folder of these, or a .toml file for a database.")
        answers["table"] = _asked("Table", None, _readable)
    columns = columns_of(answers["table"])
    if columns:
        echo(f"Columns: {', '.join(columns)}.")
    if "label" not in answers and columns:
        echo("The column to predict. It is not used as a feature. Empty: only statistics, no models.")
        answers["label"] = _asked("Label", "", lambda text: _column(text, columns)) or None
    if "person" not in answers and columns:
        echo("The column that identifies a person. Empty: there is none.")
        others = [name for name in columns if name != answers.get("label")]
        answers["person"] = _asked("Person column", "", lambda text: _column(text, others)) or None
    charged = "The maximum number of rows of one person. All of them are charged."
    if not answers.get("person"):
        charged += " You guarantee it: without a person column, the program cannot check it."
    limits: list[tuple[str, str, Callable[[str], Any], str]] = [
        ("rows_per_person", "Rows per person", int, charged),
        ("epsilon", "Limit of ε", float, "The total privacy loss of any one person, over all studies."),
        ("delta", "δ", float, "Should be well below 1 / number of persons."),
        ("max_rounds", "Rounds per study", int, "Studies with more rounds are refused."),
        ("min_rows", "Minimum number of rows", int, "If the table has fewer rows, no study is answered."),
    ]
    for name, question, kind, explanation in limits:
        if name in answers:
            continue
        echo(explanation)
        answers[name] = _asked(question, str(getattr(DEFAULTS, name)), kind)
    return SiteSettings(**answers)


def _asked(question: str, default: str | None, read: Callable[[str], Any]) -> Any:
    """Ask until ``read`` accepts the answer."""
    while True:
        answer = typer.prompt(question, default=default, show_default=bool(default))
        try:
            return read(answer.strip())
        except ValueError as problem:  # StudyError and DataError are ValueErrors
            text = str(problem) if isinstance(problem, DPADMMError) else "this is not a number"
            echo(f"Not accepted: {text}.")


def _readable(text: str) -> Path:
    path = Path(text).expanduser()
    columns_of(path)
    return path


def _column(text: str, columns: list[str]) -> str:
    if text and text not in columns:
        near = near_name(text, columns)
        raise StudyError(f"there is no column {text!r}" + (f"; did you mean {near!r}?" if near else ""))
    return text


def _check_table(site: Site) -> None:
    """Print rows, columns and warnings of the table, or raise an error with all its problems."""
    from dpadmm.cli.site_reports import describe_rows, table_warnings

    persons, columns, problems = table_problems(site)
    if persons is None:
        raise DataError(problem_text(site.table, problems))
    body: list[Block] = [*describe_rows(site, persons)]
    if columns:
        body.append(Paragraph(f"{len(columns)} columns: {', '.join(columns)}."))
    show(Rendering(title=f"Table: {site.table}", body=body, warnings=table_warnings(site, persons)))


def _store(site: Site, text: str | None, pending: PendingJoin, invitation: Any) -> list[str]:
    """Write ``site.toml``, create the ledger, and store the certificate; return the created files."""
    created = []
    if text is not None:
        with atomic_file(site.path, replace=False) as out:
            out.write(text.encode())
        created.append(str(site.path))
    if begin_ledger(site):
        created.append(str(site.ledger))
    pending.finish(invitation)
    return created


def _connection(site: Site) -> str:
    """Connect once, and describe the result. A new certificate reaches the broker after a moment."""
    from dpadmm.federation.site.connection import check_connections, reachable

    end = time.monotonic() + CONNECT_SECONDS
    while True:
        found = check_connections(site.path.parent, site.addresses)
        for url, checks in found.items():
            if reachable(checks):
                return f"Connected to {url}."
        failed = [check for checks in found.values() for check in checks if check.ok is False]
        if time.monotonic() > end or all(check.name != "certificate" for check in failed):
            warn(f"not connected yet: {failed[0].text}" if failed else "not connected yet")
            return "To test the connection: dpadmm site check --connect."
        time.sleep(0.5)


# Without a token


def _request_invitation(path: Path, name: str, certificate: Path | None) -> None:
    from dpadmm.cli.site_reports import describe_rows
    from dpadmm.federation.health import command_line
    from dpadmm.federation.identity.joining import make_request
    from dpadmm.federation.identity.private_files import read_short
    from dpadmm.federation.protocol import check_name

    check_name(name)
    if not path.exists():
        _write_template(path)
        command = command_line("site", "join", "--manual", name, "--site", path)
        lines = [f"Written: {path}. Fill it in: your table, its label, the rows per person, your limits."]
        return show(Rendering(next_steps=[*lines, f"Then repeat: {command}"]))
    site = open_site(path)
    table = describe_rows(site, site.rows.persons())
    lines = [f"Created: {site.ledger}. Never delete it: it is the only record of the spent budget."]
    lines = lines if begin_ledger(site) else []
    folder = site.path.parent
    site_request = make_request(folder, name, None if certificate is None else read_short(certificate))
    lines += [
        f"Send to the study coordinators: {folder / 'network' / 'request.json'}. It is not secret.",
        "The coordinators will ask for the fingerprint of your key:",
        site_request.fingerprint,
        f"They send back an invitation. Next: dpadmm site join --invitation FILE --site {path}",
    ]
    return show(Rendering(body=table, next_steps=lines))


def _write_template(path: Path) -> None:
    from dpadmm.cli.study import write_template

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # its ledger, keys and decisions are private
    write_template("site", path)


def begin_ledger(site: Site) -> bool:
    """Create the ledger of a new site. A site with a key or decisions had a ledger, which must not be lost."""
    if (site.ledger / MARK).exists():
        return False
    if any((site.path.parent / name).exists() for name in ("network", "studies")):
        read_ledger(site.ledger)  # raises the error of a missing ledger
    site.begin()
    return True


def _accept_invitation(path: Path, file: Path, fingerprint: str | None, *, confirmed: bool) -> None:
    from dpadmm.federation.health import command_line
    from dpadmm.federation.identity import joining

    folder, invitation = read_site(path).path.parent, joining.read_invitation(file)
    about = [f"Invitation for {invitation.name}, to connect to {invitation.url}", "Fingerprint of the server:"]
    show(Rendering(next_steps=[*about, invitation.ca_fingerprint]))
    if fingerprint is not None:
        if not joining.same_fingerprint(fingerprint, invitation.ca_fingerprint):
            raise StudyError("the fingerprints differ; the invitation is not from these study coordinators")
    elif not confirmed:
        if not os.isatty(0):
            raise StudyError("compare the fingerprint with the study coordinators, then add --yes")
        if not typer.confirm("Does it match the fingerprint that the study coordinators gave you?"):
            raise StudyError("not joined: ask the study coordinators for their fingerprint")
    joining.join(folder, invitation)
    lines = [f"Next: {command_line('site', 'run', '--site', path)}"]
    lines += [f"For each study that you receive: {command_line('site', 'review', '--site', path)} STUDY"]
    show(Rendering(next_steps=[f"Joined as {invitation.name}.", *lines]))
