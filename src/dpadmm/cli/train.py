"""``dpadmm train``: run a study on a local table, with all agents in one process and the noise of a deployment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from typer import Option

from dpadmm.cli import InterruptedRunError, console, owner_report
from dpadmm.cli.console import (
    EXPERIMENT,
    NO_LEDGER,
    AsJson,
    Decimal,
    Encoding,
    NoPublic,
    Quiet,
    Separator,
    StudyFile,
    TableFile,
    check_free,
    chosen_public,
    echo,
    opened_table,
    privacy_report_path,
    write,
)
from dpadmm.errors import StudyError
from dpadmm.planning.intervals import intervals_warning
from dpadmm.studies.checks import study_warnings
from dpadmm.studies.reading import read_study
from dpadmm.training.train import agent_sizes, encode, prior_from, run_study, with_public_table


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
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
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
    silent, table = quiet or as_json, opened_table(data, separator, decimal, encoding)
    with console.waiting(f"reading {data}", quiet=silent):
        prior = None if public_table is None else prior_from(study, public_table, private=table)
        rows = encode(study, table, by=by)
    with console.waiting("forecasting intervals", quiet=silent):
        unlikely = intervals_warning(study, agent_sizes(rows, agents or 1), public_table)
    if unlikely:
        echo(f"Warning: {unlikely} Training spends ε in any case.", style="bold yellow", err=True)
    with console.progress(None, "training", quiet=silent) as advance:
        result = run_study(
            study, rows, n_agents=agents or 1, seed=seed, prior=prior, observers=[advance], keep_interrupted=True
        )
    if not result.outcome.rounds:
        raise KeyboardInterrupt
    write(report_file, result.privacy.to_bytes())
    result.model.save(output)
    rendering = result.rendering()
    rendering = replace(rendering, warnings=[f"{text}." for text in study_warnings(study, sum(result.n_rows))])
    counts = owner_report.describe(rows.report, table)
    rendering = rendering.extend(
        *counts.body,
        notes=[*counts.notes, NO_LEDGER if result.privacy.exact_noise else EXPERIMENT],
        warnings=() if as_json else counts.warnings,  # JSON has them under owner_only
        next_steps=[f"Model:          {output}", f"Privacy report: {report_file}"],
        data={
            "model": str(output),
            "privacy_report": str(report_file),
            "owner_only": counts.data["owner_only"],
            "public_rows": None,
        },
    )
    if public_table is not None and prior is not None:
        source = Path(str(public_table)).name
        text = f"Initialised from {prior.n_rows:,} public rows of {source}, down-weighted where the private"
        public_rows = {"file": str(public_table), "rows": prior.n_rows}
        rendering = rendering.extend(
            notes=[f"{text} data disagree. They do not affect ε."], data={"public_rows": public_rows}
        )
    if result.study.hash != study.hash:
        rounds = f"The study sets no n_rounds; {result.training.planned_rounds} were chosen."
        steps = ["Hash of the study as run, as in the privacy report:", result.study.hash]
        rendering = rendering.extend(notes=[rounds], next_steps=steps)
    console.show(rendering, as_json=as_json, quiet=quiet)
    if result.interrupted:
        planned = result.training.planned_rounds
        raise InterruptedRunError(
            f"interrupted after {result.outcome.rounds} of {planned} rounds; the model is in {output}; all {planned} "
            "rounds are charged, because the decision to stop may depend on the result"
        )
