"""Renderings for ``dpadmm site``: the table, the limits, the cost of a study, and the owner's decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from dpadmm.cli.site_budget import ENDED_EARLY, left_in
from dpadmm.errors import DPADMMError, RefusalError
from dpadmm.federation.health import STATUS, command_line, is_live, read_status
from dpadmm.federation.site.connection import reachable
from dpadmm.federation.site.decisions import decisions
from dpadmm.federation.site.lifecycle import CLOSED_TEXT, participation
from dpadmm.federation.site.proposals import offers, proposals
from dpadmm.rendering import Block, Cell, Column, Paragraph, Rendering, Row, Table
from dpadmm.rendering.formats import plural, rounded_down, rounded_up
from dpadmm.sites.accounts import broken_promises
from dpadmm.sites.site import Site, counted
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import Account, LedgerState
from dpadmm.trusted.policy import MaskingLimits, Policy

if TYPE_CHECKING:
    from dpadmm.federation.site.connection import ConnectionCheck
    from dpadmm.trusted.unit import Persons

ALONE = "if all other sites collude"
CHECK_RESULTS = {True: "ok", False: "FAILED", None: "-"}


# The site


def check_rendering(site: Site, persons: Persons, state: LedgerState | None) -> Rendering:
    """Return the table's rows, the limits and the budget of a site."""
    body = [*describe_rows(site, persons), *_limits_text(site.policy), Paragraph(_ledger_text(site.policy, state))]
    paths = [f"Table:  {site.table}", f"Ledger: {site.ledger}"]
    paths += [f"Fingerprint of the ledger, verified: {state.fingerprint}"] if state is not None else []
    warnings = table_warnings(site, persons, state)
    return Rendering(body=body, warnings=warnings, next_steps=paths, data=_site_figures(site, persons, state))


def describe_rows(site: Site, persons: Persons) -> list[Paragraph]:
    """Return the number of rows that are used, and why others are not."""
    k = site.policy.unit.rows
    rows = "one row" if k == 1 else f"{k} rows"
    if persons.n_persons is None:
        promise = f"You guarantee that no person has more than {rows}."
        return [Paragraph(f"{persons.n_rows:,} rows, all used. {promise}")]
    counts = f"{persons.n_rows:,} rows of {persons.n_persons:,} persons; {persons.n_used:,} rows are used."
    if persons.n_used == persons.n_rows:
        return [Paragraph(f"{counts} No person has more than {rows}.")]
    reasons = [
        (persons.n_above, "person has", "persons have", f"more than {rows}"),
        (persons.n_without_id, "row has", "rows have", "no id"),
        (persons.n_ambiguous, "id is", "ids are", "written in different ways (7 and 007)"),
    ]
    causes = "; ".join(f"{counted(n, one, several)} {problem}" for n, one, several, problem in reasons if n)
    return [Paragraph(counts), Paragraph(f"The other rows are replaced with zeros: {causes}.")]


def _limits_text(policy: Policy) -> list[Paragraph]:
    rows = plural(policy.unit.rows, "row")
    lines = [
        f"Limit: ε {policy.epsilon:g} at δ = {policy.delta:g} for each person ({rows}), over all studies.",
        f"Allowed: methods {', '.join(sorted(policy.methods))}; losses {', '.join(sorted(policy.losses))}; at most "
        f"{policy.max_rounds:,} rounds per study; at least {policy.min_rows:,} rows.",
        *([_masking_text(policy.masking, policy.delta)] if policy.masking else []),
    ]
    return list(map(Paragraph, lines))


def _masking_text(limits: MaskingLimits, delta: float) -> str:
    colluding = counted(limits.min_withstood, "site that colludes", "sites that collude")
    return (
        f"Secure aggregation: allowed, up to ε {limits.epsilon_if_others_collude:g} at δ = {delta:g} {ALONE}. Studies "
        f"must assume at least {limits.min_honest_sites} honest sites and tolerate {colluding} with the server."
    )


def _ledger_text(policy: Policy, state: LedgerState | None) -> str:
    if state is None:
        return "The ledger is not created yet."
    n_open = sum(not account.closed for account in state.accounts.values())
    text = (
        f"Budget: {counted(len(state.accounts), 'study', 'studies')}, {n_open} open; ε "
        f"{_epsilon(state.spent, policy)} spent, {_epsilon(state.promised, policy)} spent or reserved, "
        f"{_epsilon_left(state, policy)} left."
    )
    if state.collusion_promised == state.promised:
        return text
    colluding = [_epsilon(each, policy) for each in (state.collusion_spent, state.collusion_promised)]
    return f"{text} I{ALONE[1:]}, ε {colluding[0]} is spent, {colluding[1]} spent or reserved."


def table_warnings(site: Site, persons: Persons, state: LedgerState | None = None) -> list[str]:
    """Return warnings about lines without a row, too few rows, δ, and broken promises in the ledger."""
    found, used = site.rows.line_warnings(persons.n_rows), persons.n_used
    if used < site.policy.min_rows:
        found.append(
            f"only {used:,} rows are used, fewer than your min_rows = {site.policy.min_rows:,}; any study is refused."
        )
    if site.policy.delta * used >= 1.0:
        found.append(f"δ = {site.policy.delta:g} should be well below 1 / rows = {1 / used:.2g}.")
    return found + (broken_promises(site.policy, state) if state else [])


def _site_figures(site: Site, persons: Persons, state: LedgerState | None) -> dict[str, Any]:
    policy = site.policy
    sums = ("spent", "promised", "collusion_spent", "collusion_promised")
    return {
        "table": str(site.table),
        "rows": persons.n_rows,
        "rows_used": persons.n_used,
        "persons": persons.n_persons,
        "persons_with_more": persons.n_above,
        "ids_written_differently": persons.n_ambiguous,
        "rows_without_id": persons.n_without_id,
        "limits": {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "methods": sorted(policy.methods),
            "losses": sorted(policy.losses),
            "max_rounds": policy.max_rounds,
            "min_rows": policy.min_rows,
            "rows_per_person": policy.unit.rows,
            "secure_aggregation": policy.masking._asdict() if policy.masking else None,
        },
        "ledger": str(site.ledger),
        **dict.fromkeys(sums),
        **(
            {}
            if state is None
            else {name: amount(value, policy) for name, value in zip(sums, _sums(state), strict=True)}
        ),
        "left": amount(_left(policy, state), policy),
        "left_if_others_collude": amount(_left(policy, state, alone=True), policy),
        "site_warnings": list(site.warnings()),
    }


def _sums(state: LedgerState) -> tuple[Fraction, ...]:
    return state.spent, state.promised, state.collusion_spent, state.collusion_promised


def connection_rendering(found: Mapping[str, list[ConnectionCheck]]) -> Rendering:
    """Return the checks of the connection to each broker."""
    brokers = [
        {"url": url, "reachable": reachable(checks), "checks": [check._asdict() for check in checks]}
        for url, checks in found.items()
    ]
    columns = [Column("", "check", wrap=False), Column("", "result", wrap=False), Column("", "details")]
    tables = [
        Table(columns, [(check.name, CHECK_RESULTS[check.ok], check.text) for check in checks], title=url)
        for url, checks in found.items()
    ]
    return Rendering(body=tables, data={"reachable": any(each["reachable"] for each in brokers), "brokers": brokers})


def status_rendering(seen: dict[str, Any] | None) -> Rendering:
    """Return the last status of the site's process."""
    from dpadmm.federation.health import days_left

    if seen is None:
        return Rendering(data={"running": False, "connected": False, "studies": []})
    live = is_live(seen)
    connected = live and seen["connected"]
    running = "running" if live else "not running"
    lines = [
        f"{running}, {'connected' if connected else 'not connected'} to {seen['broker']} ({seen['at']})",
        f"The certificate is valid until {seen['certificate_expires'][:10]}.",
    ]
    titles = ("study", "state", "last round", "of", "last request")
    columns = [Column("", title, wrap=title != "state") for title in titles]
    rows = [
        (
            study["name"],
            _with_reason(study),
            Cell(study["last_round"], None if study["last_round"] is not None else ""),
            Cell(study["n_rounds"], None if study["n_rounds"] is not None else ""),
            study["asked_at"] or "",
        )
        for study in seen["studies"]
    ]
    data = {**seen, "running": live, "connected": connected}
    data["certificate_days_left"] = days_left(seen["certificate_expires"])
    body: list[Block] = [*map(Paragraph, lines), *([Table(columns, rows)] if rows else [])]
    return Rendering(title=f"Site {seen['site']}", body=body, data=data)


def _with_reason(study: Mapping[str, Any]) -> str:
    return f"{study['state']} ({study['reason']})" if study["reason"] else str(study["state"])


def studies_rendering(site: Site, state: LedgerState | None) -> Rendering:
    """Return the proposed studies and the owner's decisions, with the state and the budget of each study."""
    folder, problems = site.path.parent, list[DPADMMError]()
    accounts = {} if state is None else state.accounts
    seen = read_status(folder / STATUS)
    live = {study["hash"]: study for study in seen["studies"]} if seen is not None and is_live(seen) else {}
    columns = [
        Column("name", "study"),
        Column("hash", "hash", lambda hash: hash[:12], wrap=False),
        Column("state", "state"),
        Column("decided_at", "since", lambda at: at[:10], wrap=False),
        Column("rounds", "rounds"),
        Column("of", "of"),
        Column("epsilon_spent", "ε spent", rounded_up),
        Column("epsilon_reserved", "of", rounded_up),
    ]
    rows: list[Row] = []
    offered = offers(folder)
    for proposal in proposals(folder):
        study = proposal.study
        current = "offered" if study.hash in offered else "draft" if study.is_draft else "proposed"
        rows.append((study.name, study.hash, current, proposal.at, None, study.training.planned_rounds, None, None))
    undecided = [row for row in rows if row[2] != "offered"]
    for decision in decisions(folder, problems.append):
        study, account = decision.study, accounts.get(decision.study.hash)
        kind = str(participation(decision.kind, account.ending if account else "", None))
        current = _with_reason(live[study.hash]) if study.hash in live else kind
        if study.hash in offered:
            current = "offered"
        cost = _account_cost(account, site.policy) if account else (None, None, None)
        rows.append((study.name, study.hash, current, decision.at, cost[0], study.training.planned_rounds, *cost[1:]))
    if not rows:
        return Rendering(
            body=[Paragraph("No studies yet.")],
            warnings=list(map(str, problems)),
            next_steps=["Proposed studies arrive while the site runs: dpadmm site run"],
            data={"studies": []},
        )
    steps = []
    if undecided:
        steps = [f"Next: {command_line('site', 'review', undecided[0][1][:12], '--site', site.path)}"]
    return Rendering(body=[Table(columns, rows, key="studies")], warnings=list(map(str, problems)), next_steps=steps)


def _account_cost(account: Account, policy: Policy) -> tuple[int, float, float]:
    """Return the released rounds, and ε spent and reserved at the owner's δ."""
    reserved = Fraction(account.reservation.mu_squared)
    return len(account.rounds), policy.epsilon_of(account.spent), policy.epsilon_of(reserved)


# The cost of a study


def review_rendering(
    study: Study, site: Site, state: LedgerState, n_rows: int | None, refusal: RefusalError | None
) -> Rendering:
    """Return the cost of a study, compared with the owner's limits."""
    from dpadmm.studies.rendering import describe_public_rows, describe_releases, figures

    policy, limits = site.policy, _limits(study, site.policy, state, n_rows)
    cost = {limit["limit"]: limit["asked"] for limit in limits}
    unit = "with one row" if policy.unit.rows == 1 else f"with up to {policy.unit.rows} rows"
    loss = f"Privacy loss of a person {unit}: ε {rounded_up(cost['epsilon'])} at your δ = {policy.delta:g}"
    if study.terms.masking:
        colluding = rounded_up(cost["epsilon_if_others_collude"])
        loss += f" if at least {study.terms.shares} of the sites in a round are honest; if all other sites collude, ε "
        loss += colluding
    body: list[Block] = [
        Paragraph(study.hash),
        Paragraph(describe_releases(study)[0]),
        Paragraph(f"Noise multiplier z: {study.terms.plan.describe_noise()}."),
        _limits_table(limits, policy),
        Paragraph(f"{loss}. Σμ² of several studies adds up; ε does not."),
    ]
    if study.public_rows is not None:
        body.append(Paragraph(f"Public rows: {describe_public_rows(study.public_rows)}."))
    if study.roster:
        body += map(Paragraph, _roster_text(study, site))
    if refusal is None:
        body += map(Paragraph, [*_owner_warnings(study, site, state), _review_result(study, state)])
    reason = {"code": refusal.code, "text": str(refusal)} if refusal else None
    data = {"acceptable": refusal is None, "refusal": reason, "limits": limits, "study": figures(study)}
    return Rendering(
        title=study.name, body=body, data={**data, "accepted": study.hash in state.accounts, "rows": n_rows}
    )


def _limits(study: Study, policy: Policy, state: LedgerState, n_rows: int | None) -> list[dict[str, Any]]:
    """Return every limit with its requested, allowed and remaining amount, without the study's own reservation."""
    account = state.accounts.get(study.hash)
    own, shares = (account.promised, account.shares) if account and not account.closed else (Fraction(0), 1)
    lines = []
    for limit in policy.evaluate(study.terms, n_rows, (state.promised - own, state.collusion_promised - shares * own)):
        values: dict[str, tuple[Any, ...]] = {limit.name: (limit.asked, limit.allowed, limit.left)}
        if limit.name in ("budget", "collusion_budget"):
            sums = [amount(Fraction(cast(float, each)), policy) for each in values[limit.name]]
            kind = "_if_others_collude" if limit.name == "collusion_budget" else ""
            values = {f"{name}{kind}": tuple(each[name] for each in sums) for name in sums[0]}
        for name, (asked, allowed, left) in values.items():
            names = list(allowed) if isinstance(allowed, tuple) else allowed
            lines.append({"limit": name, "asked": asked, "allowed": names, "left": left, "holds": limit.holds})
    return lines


def _limits_table(limits: Sequence[Mapping[str, Any]], policy: Policy) -> Table:
    names = {"min_honest_sites": "honest sites", "withstood": "tolerated colluding sites"}
    names |= {"epsilon": f"total ε at δ = {policy.delta:g}", "mu_squared": "total Σμ²"}
    names |= {"epsilon_if_others_collude": "total ε if all other sites collude"}
    names |= {"mu_squared_if_others_collude": "total Σμ² if all other sites collude"}
    rows = [
        (
            names.get(limit["limit"], limit["limit"]),
            *(_cell(limit["limit"], name, limit[name]) for name in ("asked", "allowed", "left")),
            limit["holds"],
        )
        for limit in limits
    ]
    columns = [
        Column("", "", wrap=False),
        Column("", "requested", align="right"),
        Column("", "allowed"),
        Column("", "left", align="right"),
        Column("", "fits"),
    ]
    return Table(columns, rows)


def _cell(limit: str, column: str, value: Any) -> str:
    if value is None:
        return ""
    if limit.startswith("epsilon"):
        return rounded_down(value) if column == "left" else rounded_up(value)
    if limit.startswith("mu_squared"):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(value)
    at_least = "at least " if limit in ("rows", "min_honest_sites", "withstood") and column == "allowed" else ""
    return f"{at_least}{value:,}" if isinstance(value, int) else str(value)


def _roster_text(study: Study, site: Site) -> list[str]:
    """List the sites and the number of owners to compare with. A sum omits up to n − q sites and needs h honest."""
    n, min_honest_sites, quorum = len(study.roster), study.terms.shares, study.terms.quorum
    names = [f"{name} (you)" if (site.keys / key).exists() else name for name, key in study.roster]
    return [
        f"Sites: {', '.join(names)}.",
        f"The first ε holds if at most {quorum - min_honest_sites} of these {n} sites collude with the server. The "
        f"server could have invented sites: compare the hash above with at least {n - quorum + min_honest_sites - 1} "
        "other owners whom you trust, for example by telephone, not through the server.",
    ]


def _owner_warnings(study: Study, site: Site, state: LedgerState) -> list[str]:
    warnings = (*site.rows.warnings(study), *broken_promises(site.policy, state))
    return [f"For the owner only: {warning}" for warning in warnings]


def _review_result(study: Study, state: LedgerState) -> str:
    account = state.accounts.get(study.hash)
    if account is None:
        return "Within your limits; you can accept it. Nothing was changed."
    done = f"{len(account.rounds)} of {study.training.planned_rounds} rounds answered"
    closed = f" {_closed_text(account, already=True)}." if account.closed else ""
    return f"Accepted since {account.reservation.at}: {done}.{closed}"


# Decisions


def accepted_rendering(study: Study, site: Site, state: LedgerState, *, known: bool) -> Rendering:
    """Return the result of accepting a study, which may have been accepted before."""
    policy, account = site.policy, state.accounts[study.hash]
    n_rows, at = account.about["n_rows"], account.reservation.at
    reserved = Fraction(account.reservation.mu_squared)
    amounts = {
        "reserved": reserved,
        "left": _left(policy, state),
        "collusion_reserved": account.shares * reserved,
        "left_if_others_collude": _left(policy, state, alone=True),
    }
    limit, left = f"{rounded_up(policy.epsilon)} at δ = {policy.delta:g}", _epsilon_left(state, policy)
    result = "Already accepted, nothing changed" if known else "Accepted"
    lines = [
        f"{result}: {study.name}, with {n_rows:,} rows, since {at}.",
        study.hash,
        f"Reserved: ε {_epsilon(reserved, policy, account.shares)} of {limit}; left for other studies: {left}.",
        *_owner_warnings(study, site, state),
        "Do not change the table until the study has ended. The site refuses to use changed rows.",
    ]
    data = {"study": study.hash, "rows": n_rows, "accepted_at": at}
    return Rendering(
        body=list(map(Paragraph, lines)), data=data | {name: amount(each, policy) for name, each in amounts.items()}
    )


def left_rendering(site: Site, study: str, state: LedgerState, *, already: bool) -> Rendering:
    """Return the result of leaving a study, which may have been closed before."""
    account = state.accounts[study]
    name, rounds = account.about.get("name") or study[:12], plural(len(account.rounds), "round")
    lines = [
        f"{name}, after {rounds}: {_closed_text(account, already=already)}.",
        study,
        _charged_text(account, state, site.policy),
    ]
    return Rendering(body=list(map(Paragraph, lines)))


def declined_text(study: Study, site: Site, state: LedgerState, changed: bool) -> str:
    """Describe the result of declining a study."""
    account = state.accounts.get(study.hash)
    if account is None:
        done = "Declined, and recorded with the date" if changed else "Already declined, nothing changed"
        return f"{done}. Nothing was reserved."
    done = "Declined, and left because it was accepted" if changed else _closed_text(account, already=True)
    return (
        f"{done}. The study gets no more answers and cannot be accepted again. Answered: "
        f"{plural(len(account.rounds), 'round')}. {_charged_text(account, state, site.policy)}"
    )


def _closed_text(account: Account, *, already: bool) -> str:
    """Describe how a study was closed, and whether that was before this command."""
    text = CLOSED_TEXT[participation("accepted", account.ending, None)]
    return f"{text} (already closed; nothing changed)" if already else text


def _charged_text(account: Account, state: LedgerState, policy: Policy) -> str:
    """Describe the cost of a closed study and the remaining budget."""
    spent, left = _epsilon(account.spent, policy, account.shares), _epsilon_left(state, policy)
    charged = f"Charged: ε {spent}; left for other studies: {left}."
    if account.ending == "restore":
        return f"{charged} This is its whole budget, because the restored ledger may lack some of its rounds."
    return f"{charged} {ENDED_EARLY}"


# Amounts


def amount(mu_squared: Fraction, policy: Policy) -> dict[str, float]:
    """Return Σμ² and the corresponding ε at the owner's δ."""
    return {"epsilon": policy.epsilon_of(mu_squared), "mu_squared": float(mu_squared)}


def _left(policy: Policy, state: LedgerState | None, *, alone: bool = False) -> Fraction:
    """Return the Σμ² that is neither spent nor reserved, or with ``alone`` the one if all other sites collude."""
    state = state or LedgerState()
    if alone:
        return left_in(Fraction(policy.collusion_cap), state.collusion_promised)
    return left_in(Fraction(policy.cap), state.promised)


def _epsilon(mu_squared: Fraction, policy: Policy, shares: int = 1) -> str:
    """Return ε as text; with secure aggregation, also ε if all other sites collude."""
    text = rounded_up(policy.epsilon_of(mu_squared))
    return f"{text} ({_epsilon(shares * mu_squared, policy)} {ALONE})" if shares > 1 else text


def _epsilon_left(state: LedgerState, policy: Policy) -> str:
    sums = [_left(policy, state, alone=alone) for alone in (False, True)]
    shown = [rounded_down(policy.epsilon_of(each)) for each in sums]
    return shown[0] if sums[0] == sums[1] else f"{shown[0]} ({shown[1]} {ALONE})"
