"""Renderings of a server's studies and sites, for ``dpadmm server status`` and ``sites``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpadmm.federation.health import STATUS, Alarm, ServerStatus, command_line, is_live, read_status
from dpadmm.federation.server.delivery import open_drafts
from dpadmm.federation.server.status import SHORT_HASH, overview
from dpadmm.rendering import Block, Cell, Column, Paragraph, Rendering, Row, Table

if TYPE_CHECKING:
    from dpadmm.federation.identity.authority import Authority

MAX_STALLS_SHOWN = 10
"""Latest stalls that are shown. JSON has all stalls of a snapshot."""
LAST_ROUND_STATES = {"present": "answered", "missing": "missed", "unseen": "never answered"}
"""Names of states of sites when no server runs the study."""


OWNERS = {"received": "undecided", "accepted": "accepted", "declined": "declined"}
"""What owners replied to the proposal of a study."""


def sites_rendering(authority: Authority) -> Rendering:
    """Return the sites with their connections, the dates of joining, and the fingerprints of their keys."""
    broker, now = read_status(authority.folder / STATUS, ServerStatus), datetime.now(UTC)
    contacts = broker["sites"] if broker is not None and is_live(broker) else {}
    rows: list[Row] = []
    for site in authority.sites():
        state = "revoked" if site.revoked else "joined" if site.usable(now) else "expired"
        contact = contacts.get(site.name)
        connected = None if contact is None else not contact["silent"]
        last_seen = None if contact is None else contact["last_seen"]
        joined, expires = f"{site.approved_at:%Y-%m-%d %H:%M}", f"{site.expires:%Y-%m-%d}"
        rows.append((site.name, state, connected, last_seen, joined, expires, site.fingerprint))
    names = {row[0] for row in rows if row[1] != "revoked"}
    for name, until in authority.invited().items():
        if name not in names:
            rows.append((name, "invited", None, None, "", f"{until:%Y-%m-%d}", ""))
    columns = [
        Column("name", "site"),
        Column("state", "state"),
        Column("connected", "connected"),
        Column("last_seen", "last seen (UTC)", _date),
        Column("joined", "joined (UTC)"),
        Column("expires", "valid until"),
        Column("fingerprint"),
    ]
    if not rows:
        invite = command_line("server", "invite", "NAME", "--folder", authority.folder)
        return Rendering(body=[Paragraph("No sites yet.")], next_steps=[f"To invite one: {invite}"], data={"sites": []})
    keys = [(row[0], row[6]) for row in rows if row[6]]
    body: list[Block] = [Table(columns, rows, key="sites")]
    if keys:
        title = "Fingerprints of the sites' keys, for a check by telephone"
        body.append(Table([Column("", ""), Column("", "")], keys, title=title))
    notes = [] if contacts else ["Connections are shown while dpadmm server start is running."]
    return Rendering(body=body, notes=notes)


def status_rendering(folder: Path, seen: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm]) -> Rendering:
    """Return the state of the broker, of one study in detail or of several in one line each, and the alarms."""
    broker = read_status(folder / STATUS, ServerStatus)
    data: dict[str, Any] = {"broker": broker and broker | {"running": is_live(broker)}}
    lines = (
        [] if broker is None else [f"Broker ({'running' if is_live(broker) else 'not running'}): {broker['broker']}"]
    )
    waiting = open_drafts(folder)
    data["drafts"] = waiting
    lines += [_draft_line(draft) for draft in waiting]
    alarm_lines = [alarm.line for alarm in alarms]
    if len(seen) == 1:
        study = study_rendering(seen[0])
        return study.extend(next_steps=[*lines, *alarm_lines], data={**seen[0], **data})
    if not seen:
        message = Paragraph("No study was proposed yet.")
        return Rendering(
            body=[message], next_steps=[*lines, *alarm_lines], data={"state": "none", "studies": [], **data}
        )
    listed = overview(folder)
    example = command_line("server", "status", listed[0]["hash"][:SHORT_HASH], "--folder", folder)
    return Rendering(
        body=[overview_table(listed)],
        next_steps=[*lines, f"Details of one study: {example}", *alarm_lines],
        data={"state": "several", "studies": seen, **data},
    )


def _draft_line(draft: Mapping[str, Any]) -> str:
    waiting = ", ".join(site for site in draft["members"] if site not in draft["offers"])
    offered = ", ".join(draft["offers"]) or "none"
    return f"Draft {draft['name']!r} ({draft['hash'][:SHORT_HASH]}): offered keys: {offered}; waiting for {waiting}"


def overview_table(studies: Sequence[Mapping[str, Any]]) -> Table:
    """Return one line for each study of a server."""
    columns = [
        Column("", "study"),
        *(Column("", title, wrap=False) for title in ("hash", "state", "rounds", "sites", "began", "last round")),
    ]
    return Table(columns, [_overview_row(study) for study in studies])


def _overview_row(study: Mapping[str, Any]) -> tuple[str, ...]:
    present = study["sites_present"]
    return (
        study["name"],
        study["hash"][:SHORT_HASH],
        study["state"],
        f"{study['rounds_done']} of {study['n_rounds']}",
        f"{'–' if present is None else present} of {study['n_sites']}",
        study["begun_at"][:10],
        _date(study["last_round_at"]),
    )


def study_rendering(seen: Mapping[str, Any]) -> Rendering:
    """Return the state of a study: rounds, sites, and the last warnings."""
    study, done, pace = seen["study"], seen["rounds_done"], _pace(seen["median_seconds"])
    since = f" (since {_date(seen['since'])} UTC)" if seen["since"] else ""
    last = f"; last round {_date(seen['last_round_at'])}" if seen["last_round_at"] else ""
    body: list[Block] = [
        Paragraph(seen["headline"] + since),
        Paragraph(f"{done} of {study['n_rounds']} rounds{pace}; quorum: {seen['quorum']} sites"),
        Paragraph(f"began {_date(seen['begun_at'])}{last} (UTC)"),
        Paragraph(f"noise multiplier z: {study['noise']}"),
        _sites_table(seen),
    ]
    if aborted := seen.get("aborted_rounds"):
        rounds = ", ".join(str(each["round"]) for each in aborted)
        body.append(Paragraph(f"Aborted rounds: {rounds}. Their budget is spent, and their updates are discarded."))
    if stalls := seen["stalls"][-MAX_STALLS_SHOWN:]:
        titles = ("stalled by", "round", "start (UTC)", "end (UTC)")
        rows = [(each["site"], each["round"], each["start"][:19], (each["end"] or "open")[:19]) for each in stalls]
        body.append(Table([Column("", title) for title in titles], rows))
    events = [f"{event['at'][:19]} {event['text']}" for event in seen["events"] if event["level"] != "info"][-5:]
    return Rendering(title=study["name"], body=[*body, *map(Paragraph, events)])


def _sites_table(seen: Mapping[str, Any]) -> Table:
    served, masked = seen.get("served") is not False, "min_honest_sites" in seen
    deciding = seen["rounds_done"] == 0
    columns = [
        Column("", "site"),
        *([Column("", "owner")] if deciding else []),
        Column("", "state" if served else "last round"),
        Column("", "rows"),
        Column("", "rounds answered"),
        Column("", f"ε so far at δ = {seen['study']['delta']:g}", ".4f"),
        *([Column("", "if all other sites collude", ".4f")] if masked else []),
    ]
    rows = []
    for site in seen["sites"]:
        state = site["state"] if served else LAST_ROUND_STATES.get(site["state"], site["state"])
        state += f" ({site['code']})" if site["code"] else ""
        n_rows = Cell(text="") if site["rows"] is None else site["rows"]
        losses = (site["epsilon"], *([site["epsilon_if_others_collude"]] if masked else []))
        owner = [OWNERS.get(site.get("decision"), "unknown")] if deciding else []
        rows.append((site["name"], *owner, state, n_rows, site["answered"], *losses))
    return Table(columns, rows)


def _pace(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", {1000 * seconds:.0f} ms each" if seconds < 1 else f", {seconds:.1f} s each"


def _date(at: str | None) -> str:
    return "" if at is None else f"{at[:10]} {at[11:16]}"
