"""Train a study with all agents in this process.

The noise is the exact noise of deployed sites, drawn from the operating system's entropy. With a seed the noise is
simulated, for experiments only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.partition import NumberedNames, equal_owners, of_codes
from dpadmm.data.reader import Table, is_table, open_table, path_of
from dpadmm.data.table import EncodedTable, encode_table
from dpadmm.engine.loop import Observer
from dpadmm.engine.noise import ExactNoise, Noise, SimulatedNoise
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.memmap import is_mapped
from dpadmm.matrices.storage import group_order, reorder
from dpadmm.methods.prior import Prior, prior_of
from dpadmm.models.run import Result, run
from dpadmm.planning.intervals import intervals_warning
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.studies.drafts.draft import Draft
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import TRAINING, Study


def train(
    study: Study | StrPath,
    data: Table,
    *,
    by: str | None = None,
    n_agents: int = 1,
    seed: int | None = None,
    public: Table | Literal[False] | None = None,
) -> Result:
    """Train the model of a study on one table, with all agents in this process.

    This is the Python form of ``dpadmm train``.

    Parameters
    ----------
    study : Study or path
        The study, or the path of its TOML file.
    data : path, data frame or Arrow table
        Table with the private rows: a file, for example CSV, Excel or Parquet; a data frame of pandas or polars; an
        Arrow table; or another object with the Arrow PyCapsule interface. The same rows give the same model in every
        form.
    by : str, optional
        Column that identifies the owner of each row. Each owner is one agent. If not given, the rows are assigned
        at random to ``n_agents`` agents of equal size.
    n_agents : int, default=1
        Number of agents. Must be 1 if ``by`` is given.
    seed : int, optional
        Seed for simulated noise. The run is then reproducible and provides no privacy. If not given, the noise is
        exact and differs in every run.
    public : path, data frame, Arrow table or False, optional
        Public table to use instead of the study's public rows; False ignores them. Training starts from the public
        rows and down-weights them if the private data disagree.

    Returns
    -------
    Result
        ``result.model`` is the trained :class:`~dpadmm.Model`. ``result.privacy`` is the privacy report of the
        run, with the ε of every agent.

    Raises
    ------
    StudyError
        If the study trains no model, or has no columns or label.
    DataError
        If a table cannot be read, does not match the study, or is both the public and the private table.
    DivergenceError
        If the weights are no longer finite.

    Warns
    -----
    UserWarning
        If the study requests confidence intervals that are unlikely according to a forecast from public values. The
        warning is issued before the first round. A filter that turns it into an error saves the budget.

    See Also
    --------
    dpadmm.simulate : Experiments with simulated noise, test rows and measurements in every round.

    Examples
    --------
    >>> from dpadmm import train
    >>> result = train("study.toml", "patients.csv", by="hospital")  # doctest: +SKIP
    >>> result.model.save("readmission.npz")  # doctest: +SKIP
    """
    study, data = as_study(study), open_table(data) if is_table(data) else data
    study, public_table = with_public_table(study, public)
    prior = None if public_table is None else prior_from(study, public_table, private=data)
    table = encode(study, data, by=by)
    unlikely = intervals_warning(study, agent_sizes(table, n_agents), public_table)
    if unlikely:
        warnings.warn(unlikely, UserWarning, stacklevel=2)
    return run_study(study, table, n_agents=n_agents, seed=seed, prior=prior)


def as_study(study: Study | StrPath) -> Study:
    """Return a study, or read it from the path of its file."""
    if isinstance(study, Study):
        return study
    if isinstance(study, Draft):
        raise StudyError(
            "the values of the draft are not confirmed as public: review them, then use the study that confirm() "
            "returns"
        )
    return read_study(Path(study))


def with_public_table(study: Study, public: Table | Literal[False] | None) -> tuple[Study, Table | None]:
    """Return the study to run and its public table.

    If ``public`` is given, it replaces the study's public rows. False removes them.
    """
    if study.kind != TRAINING:
        command = "dpadmm describe" if study.kind == "statistics" else "dpadmm evaluate --epsilon"
        raise StudyError(f'a study of kind = "{study.kind}" trains no model; use {command}, or run it across sites')
    if public is not None:
        return replace(study, public_rows=None), None if public is False else _readable(public)
    if study.public_rows is None:
        return study, None
    try:
        return study, study.public_rows.verified()
    except DataError as error:
        raise DataError(f"{error}, or ignore them: --no-public (in Python public=False)") from None


def _readable(public: Table) -> Table:
    """Return a table that can be read several times."""
    return open_table(public) if is_table(public) else public


def prior_from(study: Study, public: Table, *, private: Table = None) -> Prior:
    """Return the prior from the rows of a public table. Raise DataError if it is also the ``private`` table."""
    files = path_of(public), path_of(private)
    if files[0] is not None and files[1] is not None and _has_same_bytes(files[0], files[1]):
        raise DataError(
            f"{files[1]} is also the public table, whose rows are not protected; train on other rows, or ignore "
            "the public rows: --no-public (in Python public=False)"
        )
    table = encode(study, public).labelled()
    if private is not None and None in files and _has_same_rows(study, table, private):
        raise DataError(
            "the private table has the same rows as the public table, whose rows are not protected; train on other "
            "rows, or pass public=False"
        )
    return prior_of(study.problem, make_rows(table.features, table.labels, row_weights=table.row_weights))


def _has_same_rows(study: Study, public: EncodedTable, private: Table) -> bool:
    if open_table(private).row_count() not in (None, len(public.labels)):
        return False
    table = encode(study, private)
    weights: Floats = np.random.default_rng(0).standard_normal((table.features.shape[1], 1))
    same_labels = len(table.labels) == len(public.labels) and np.array_equal(table.labels, public.labels)
    return same_labels and np.array_equal(table.features @ weights, public.features @ weights)


def _has_same_bytes(one: Path, other: Path) -> bool:
    if one.is_dir() and other.is_dir():
        return one.samefile(other)
    if not (one.is_file() and other.is_file()):
        return False  # the reader of the table raises an error with the reason
    return one.stat().st_size == other.stat().st_size and PublicRows.of(one) == PublicRows.of(other)


def encode(study: Study, data: Table, *, by: str | None = None, intercept: bool | None = None) -> EncodedTable:
    """Encode a table by the columns of a study. ``intercept`` overrides the study's setting."""
    if study.schema is None:
        raise StudyError(
            "the study has a list of features only; training on a table needs [columns] with public bounds and "
            "values, and a [label] (dpadmm study new drafts them)"
        )
    has_intercept = study.training.intercept if intercept is None else intercept
    return encode_table(data, study.encoding or study.schema, study.label, by=by, intercept=has_intercept)


def run_study(
    study: Study,
    table: EncodedTable,
    *,
    n_agents: int = 1,
    seed: int | None = None,
    prior: Prior | None = None,
    observers: Sequence[Observer] = (),
    keep_interrupted: bool = False,
) -> Result:
    """Train a study on an encoded table.

    Each owner in the table is one agent. Without owners, the rows are assigned at random to ``n_agents`` agents.

    Parameters
    ----------
    seed : int, optional
        Seed for simulated noise: reproducible, without privacy. If not given, the noise is exact.
    keep_interrupted : bool, default=False
        Whether Ctrl-C ends the run and returns the rounds so far. If False, KeyboardInterrupt is raised.
    """
    rows, names = _rows_by_agent(table, n_agents, seed)
    if rows.n_features != study.shape[0]:
        raise DataError(f"the rows have {rows.n_features} features, but the study has {study.shape[0]}")
    study.check_rows(*rows.n_rows.tolist())
    noise: Noise = ExactNoise() if seed is None else SimulatedNoise(seed, rows.n_agents, study.shape)
    result = run(
        study.training,
        study.problem,
        rows,
        noise,
        prior=prior,
        observers=observers,
        keep_interrupted=keep_interrupted,
        max_rows_per_site=study.max_rows_per_site,
    )
    if result.training != study.training:  # the number of rounds was derived from the sizes
        study = replace(study, training=result.training)
    return replace(result, of_study=study, names=names)


def agent_sizes(table: EncodedTable, n_agents: int) -> Integers:
    """Return the public number of rows of every agent: by the owners of the table, or equal shares."""
    if table.groups is not None:
        return np.bincount(table.groups, minlength=len(table.owners))
    return np.array([len(part) for part in np.array_split(np.arange(len(table.labels)), n_agents)])


def _rows_by_agent(table: EncodedTable, n_agents: int, seed: int | None) -> tuple[Rows, Sequence[str]]:
    """Return the rows, grouped by agent, and the agents' names. Rows in a mapped file are rewritten in this order."""
    features, labels, weights = table.features, table.labels, table.row_weights
    owners, names = _assign_owners(table, n_agents, seed)
    if not is_mapped(features):
        partition = of_codes(owners, names)
        order, offsets = partition.order, partition.offsets
        return make_rows(features, labels, order=order, offsets=offsets, names=names, row_weights=weights), names
    if len(names) == 1:
        return make_rows(features, labels, names=names, row_weights=weights), names
    positions, offsets = group_order(owners, len(names))
    del owners  # frees memory, as does the deletion of the positions below
    features, labels = reorder(features, positions), np.asarray(reorder(labels[:, None], positions)).reshape(-1)
    if weights is not None:
        weights = np.asarray(reorder(weights[:, None], positions)).reshape(-1)
    del positions
    return make_rows(features, labels, offsets=offsets, names=names, row_weights=weights), names


def _assign_owners(
    table: EncodedTable, n_agents: int, seed: int | None
) -> tuple[NDArray[np.integer[Any]], Sequence[str]]:
    """Return the agent of every row, and the agents' names."""
    if table.groups is None:
        rng = np.random.default_rng(seed)
        return equal_owners(len(table.labels), n_agents, rng), NumberedNames(n_agents)
    if n_agents != 1:
        raise StudyError("n_agents cannot be set if a column of the table identifies the owners; leave one of them out")
    return table.groups, tuple(table.owners)
