"""``dpadmm train``: run a study on a local table, with all agents in one process and the noise of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Option

from dpadmm.cli import InterruptedRunError, console, owner_report
from dpadmm.cli.console import (
    AsJson,
    NoPublic,
    Quiet,
    Row,
    StudyFile,
    TableFile,
    check_free,
    chosen_public,
    echo,
    echo_json,
    echo_path,
    show_table,
    write,
)
from dpadmm.data.table import EncodedTable
from dpadmm.errors import StudyError
from dpadmm.models.run import Result
from dpadmm.planning.intervals import unlikely_intervals
from dpadmm.studies.study import read_study, study_warnings
from dpadmm.training.train import agent_sizes, encode, prior_from, run_study, with_public_table

NO_LEDGER = "Not recorded in a ledger. Further releases from the same rows, including another run, add to this ε."
EXPERIMENT = "Seeded noise: a reproducible experiment without privacy protection."


def train(
    study_file: StudyFile,
    data: TableFile,
    by: str | None = Option(None, help="Column that identifies the owner of each row."),
    agents: int | None = Option(
        None, "--agents", "-n", help="Number of agents; rows are assigned at random.", show_default="1", min=1
    ),
    output: Path = Option(
        Path("model.dpadmm"), "--output", "-o", help="Model file. The privacy report is written next to it."
    ),
    seed: int | None = Option(
        None,
        "--seed",
        help="Use reproducible noise without privacy protection, for experiments.",
        show_default="exact noise from the operating system",
        min=0,
    ),
    public: Path | None = Option(
        None,
        help="Public rows used for initialisation; down-weighted if the private data disagree.",
        show_default="the study's public rows, if it has any",
    ),
    no_public: NoPublic = False,
    overwrite: bool = Option(False, "--overwrite", help="Replace an existing model."),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a local table.

    All agents run in this process, with the noise of a deployment. Ctrl-C
    stops training after the current round and keeps the model. All planned
    rounds are charged.
    """
    if by is not None and agents is not None:
        raise StudyError("--by and --agents cannot be combined: --by defines the agents")
    study, public_table = with_public_table(read_study(study_file), chosen_public(public, no_public))
    report_file = privacy_report_path(output)
    check_free(output, report_file, overwrite=overwrite)
    silent = quiet or as_json
    with console.waiting(f"reading {data}", quiet=silent):
        prior = None if public_table is None else prior_from(study, public_table, private=data)
        rows = encode(study, data, by=by)
    with console.waiting("forecasting intervals", quiet=silent):
        unlikely = unlikely_intervals(study, agent_sizes(rows, agents or 1), public_table)
    if unlikely:
        echo(f"Warning: {unlikely} Training spends ε in any case.", style="bold yellow", err=True)
    with console.progress(None, "training", quiet=silent) as advance:
        result = run_study(
            study, rows, n_agents=agents or 1, seed=seed, prior=prior, observers=[advance], keep_interrupted=True
        )
    if not result.outcome.rounds:
        raise KeyboardInterrupt
    write(report_file, result.statement.as_bytes())
    result.model.save(output)
    public_rows = None if public_table is None or prior is None else {"file": str(public_table), "rows": prior.n_rows}
    if as_json:
        echo_json({**_to_dict(result, rows, data, output), "public_rows": public_rows})
    elif not quiet:
        _show(result, rows, data, output)
        if result.study.hash != study.hash:
            rounds = f"The study sets no n_rounds; {result.training.planned_rounds} were chosen."
            echo_path(f"{rounds} Hash of the study as run, as in the privacy report:", result.study.hash)
        if public_table is not None and prior is not None:
            echo(
                f"Initialised from {prior.n_rows:,} public rows of {public_table.name}, down-weighted where the "
                "private data disagree. They do not affect ε."
            )
    if result.interrupted:
        planned = result.training.planned_rounds
        raise InterruptedRunError(
            f"interrupted after {result.outcome.rounds} of {planned} rounds; the model is in {output}; all {planned} "
            "rounds are charged, because the decision to stop may depend on the result"
        )


def privacy_report_path(output: Path) -> Path:
    """Return ``m.statement.json`` for ``m.dpadmm`` or ``m.json``."""
    return output.with_name(f"{output.name.removesuffix('.json').removesuffix('.dpadmm')}.statement.json")


def _to_dict(result: Result, rows: EncodedTable, data: Path, output: Path) -> dict[str, Any]:
    worst = result.statement.as_json()["worst"]
    names = list(result.names) or [str(i + 1) for i in range(len(result.n_rows))]
    return {
        "study": {"name": result.study.name, "hash": result.study.hash},
        "model": str(output),
        "statement": str(privacy_report_path(output)),
        "noise": "exact" if result.privacy.exact_noise else "simulated",
        "epsilon": worst["epsilon"][repr(float(result.privacy.delta))],
        "epsilon_paper": worst["epsilon_paper"],
        "epsilon_if_others_collude": worst["epsilon_if_others_collude"],
        "delta": result.privacy.delta,
        "agents": dict(zip(names, result.n_rows, strict=True)),
        "rows": sum(result.n_rows),
        "rounds": result.outcome.rounds,
        "interrupted": result.interrupted,
        "owner_only": owner_report.as_json(rows.report, data),
    }


def _show(result: Result, table: EncodedTable, data: Path, output: Path) -> None:
    values = _to_dict(result, table, data, output)
    study, count = result.study, len(result.n_rows)
    agents = f"{count} agents with {console.number_range(result.n_rows, ',d')} rows each" if count > 1 else "one agent"
    echo(f"{study.name}: {sum(result.n_rows):,} rows × {len(study.features)} features, {agents}")
    model = f"{study.training.loss.name} loss, {study.training.regularizer.name} regularizer"
    echo(f"{study.training.method.name}, {model}, {result.outcome.rounds} rounds")
    rows: list[Row] = [
        ("total ε, exact", console.rounded_up(values["epsilon"])),
        *console.aggregation_rows(result.privacy),
    ]
    if values["epsilon_paper"] is not None:
        rows.append(("total ε, paper's moments bound", console.rounded_up(values["epsilon_paper"])))
    rows.append(("δ", f"{result.privacy.delta:g}"))
    rows.append(("noise multiplier z", study.terms.plan.noise_in_words()))
    show_table(("privacy loss of a person with one row", ""), rows)
    echo(*(f"Warning: {warning}." for warning in study_warnings(study, sum(result.n_rows))))
    owner_report.show(table.report, data)
    exact = result.privacy.exact_noise
    echo(NO_LEDGER if exact else EXPERIMENT, style=None if exact else "bold")
    echo_path(f"Model:          {output}", f"Privacy report: {privacy_report_path(output)}")
