"""``dpadmm train``: a study on a table, with all agents in this process and the noise of deployed agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Option

from dpadmm.cli import InterruptedRunError, owner_report, screen
from dpadmm.cli.screen import (
    AsJson,
    NoPublic,
    Quiet,
    Row,
    StudyFile,
    TableFile,
    check_free,
    chosen_public,
    echo_json,
    say,
    say_path,
    show_table,
    write,
)
from dpadmm.data.encoded import EncodedTable
from dpadmm.errors import StudyError
from dpadmm.models.run import Result
from dpadmm.planning.intervals import unlikely_intervals
from dpadmm.studies.study import read_study, study_warnings
from dpadmm.training.train import agent_sizes, encode, prior_from, run_study, with_public_table

ADDS_UP = "No ledger was kept: other releases from the same rows, including another training, add to this ε."
EXPERIMENT = "The noise was simulated from a seed: a reproducible experiment without any protection."


def train(
    study_file: StudyFile,
    data: TableFile,
    by: str | None = Option(None, help="The column with the agent of each row."),
    agents: int | None = Option(
        None, "--agents", "-n", help="Number of agents; the rows are split at random.", show_default="1", min=1
    ),
    output: Path = Option(
        Path("model.dpadmm"), "--output", "-o", help="The model's file; the privacy statement is written beside it."
    ),
    seed: int | None = Option(
        None,
        "--seed",
        help="For experiments only: reproducible, simulated noise without any protection.",
        show_default="exact noise from the operating system",
        min=0,
    ),
    public: Path | None = Option(
        None,
        help="A table of public rows: the start, trusted as far as the first answers agree.",
        show_default="the study's public rows, if it has any",
    ),
    no_public: NoPublic = False,
    overwrite: bool = Option(False, "--overwrite", help="Replace an existing model."),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a study's model on a table, all agents in this process.

    The noise is exact and differs in every run. Ctrl-C ends the training
    after the current round: its model is kept, and charged for all rounds.
    """
    if by is not None and agents is not None:
        raise StudyError("--by and --agents cannot be combined: --by defines the agents")
    study, known = with_public_table(read_study(study_file), chosen_public(public, no_public))
    statement = statement_beside(output)
    check_free(output, statement, overwrite=overwrite)
    silent = quiet or as_json
    with screen.waiting(f"reading {data}", quiet=silent):
        prior = None if known is None else prior_from(study, known, private=data)
        rows = encode(study, data, by=by)
    with screen.waiting("forecasting intervals", quiet=silent):
        unlikely = unlikely_intervals(study, agent_sizes(rows, agents or 1), known)
    if unlikely:
        say(f"Warning: {unlikely} Training spends ε with or without them.", style="bold yellow", err=True)
    with screen.progress(None, "training", quiet=silent) as advance:
        result = run_study(
            study, rows, n_agents=agents or 1, seed=seed, prior=prior, observers=[advance], keep_interrupted=True
        )
    if not result.outcome.rounds:
        raise KeyboardInterrupt
    write(statement, result.statement.as_bytes())
    result.model.save(output)
    start = None if known is None or prior is None else {"file": str(known), "rows": prior.n_rows}
    if as_json:
        echo_json({**_plain(result, rows, data, output), "public_rows": start})
    elif not quiet:
        _show(result, rows, data, output)
        if result.study.hash != study.hash:
            filled = f"The study sets no n_rounds: {result.training.planned_rounds} were filled in."
            say_path(f"{filled} Hash of the study as run, which the statement has:", result.study.hash)
        if known is not None and prior is not None:
            said = f"{prior.n_rows:,} public rows of {known.name} were the start"
            say(f"{said}, trusted as far as the first answers agreed; no ε depends on them.")
    if result.interrupted:
        raise InterruptedRunError(
            f"interrupted after {result.outcome.rounds} of {result.training.planned_rounds} rounds; their model is "
            f"in {output}, and charged for all {result.training.planned_rounds}, because the decision to stop "
            "may depend on the result"
        )


def statement_beside(output: Path) -> Path:
    """``m.dpadmm`` or ``m.json`` -> ``m.statement.json``."""
    return output.with_name(f"{output.name.removesuffix('.json').removesuffix('.dpadmm')}.statement.json")


def _plain(result: Result, rows: EncodedTable, data: Path, output: Path) -> dict[str, Any]:
    worst = result.statement.as_json()["worst"]
    names = list(result.names) or [str(i + 1) for i in range(len(result.n_rows))]
    return {
        "study": {"name": result.study.name, "hash": result.study.hash},
        "model": str(output),
        "statement": str(statement_beside(output)),
        "noise": "exact" if result.privacy.exact_noise else "simulated",
        "epsilon": worst["epsilon"][repr(float(result.privacy.delta))],
        "epsilon_paper": worst["epsilon_paper"],
        "epsilon_alone": worst["epsilon_alone"],
        "delta": result.privacy.delta,
        "agents": dict(zip(names, result.n_rows, strict=True)),
        "rows": sum(result.n_rows),
        "rounds": result.outcome.rounds,
        "interrupted": result.interrupted,
        "owner_only": owner_report.as_json(rows.report, data),
    }


def _show(result: Result, found: EncodedTable, data: Path, output: Path) -> None:
    plain = _plain(result, found, data, output)
    study, count = result.study, len(result.n_rows)
    who = f"{count} agents of {screen.number_range(result.n_rows, ',d')} rows" if count > 1 else "one agent"
    say(f"{study.name}: {sum(result.n_rows):,} rows × {len(study.features)} features, {who}")
    model = f"{study.training.loss.name} loss, {study.training.regularizer.name} regularizer"
    say(f"{study.training.method.name}, {model}, {result.outcome.rounds} rounds")
    rows: list[Row] = [("total ε, exact", screen.rounded_up(plain["epsilon"])), *screen.trust_rows(result.privacy)]
    if plain["epsilon_paper"] is not None:
        rows.append(("total ε, paper's moments bound", screen.rounded_up(plain["epsilon_paper"])))
    rows.append(("δ", f"{result.privacy.delta:g}"))
    rows.append(("noise multiplier z", study.terms.plan.noise_in_words()))
    show_table(("privacy loss of a person with one row", ""), rows)
    say(*(f"Warning: {each}." for each in study_warnings(study, sum(result.n_rows))))
    owner_report.show(found.report, data)
    exact = result.privacy.exact_noise
    say(ADDS_UP if exact else EXPERIMENT, style=None if exact else "bold")
    say_path(f"Model:     {output}", f"Statement: {statement_beside(output)}")
