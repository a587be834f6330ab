"""A study with all agents in this process: study + encoded table -> model and privacy statement.

The noise is that of deployed agents, exact and from the operating system, unless a seed is given for an
experiment.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.encoded import EncodedTable, encode_table
from dpadmm.data.partition import equal_owners, numbered, of_codes
from dpadmm.engine.loop import Observer
from dpadmm.engine.noise import ExactNoise, Noise, SimulatedNoise
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.matrices.arrays import Integers
from dpadmm.matrices.memmap import is_mapped
from dpadmm.matrices.storage import group_order, reorder
from dpadmm.methods.prior import Prior, prior_of
from dpadmm.models.run import Result, run
from dpadmm.planning.intervals import unlikely_intervals
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.study import TRAINING, Study, read_study


def train(
    study: Study | StrPath,
    data: StrPath,
    *,
    by: str | None = None,
    n_agents: int = 1,
    seed: int | None = None,
    public: StrPath | Literal[False] | None = None,
) -> Result:
    """Train a study on a table, all agents in this process: ``dpadmm train`` as a function.

    Parameters
    ----------
    study : Study or path
        A study, or its file.
    data : path
        The table with the private rows.
    by : str, optional
        The column that says who owns a row; without it rows are dealt to ``n_agents``.
    n_agents : int
        Number of agents, where no column says who owns a row.
    seed : int, optional
        Simulated noise, which protects nobody. Without it the noise is exact, and differs in every run.
    public : path or False, optional
        A public table in place of the study's own, or none. Training starts from the public rows, trusted as far as
        the first private answers agree with them.

    Returns
    -------
    Result
        ``result.model`` predicts from tables, and ``result.statement`` says what it cost.

    Warns
    -----
    UserWarning
        The study requests confidence intervals, and a forecast from public values makes them unlikely. It is issued
        before the first round, so a filter that turns it into an error saves the budget.
    """
    agreed = study if isinstance(study, Study) else read_study(Path(study))
    agreed, table = with_public_table(agreed, public)
    prior = None if table is None else prior_from(agreed, table, beside=data)
    rows = encode(agreed, data, by=by)
    unlikely = unlikely_intervals(agreed, agent_sizes(rows, n_agents), table)
    if unlikely:
        warnings.warn(unlikely, UserWarning, stacklevel=2)
    return run_study(agreed, rows, n_agents=n_agents, seed=seed, prior=prior)


def with_public_table(study: Study, given: StrPath | Literal[False] | None) -> tuple[Study, Path | None]:
    """The study as it is run, and the public table that it starts from: its own, or what is given in its place."""
    if study.kind != TRAINING:
        instead = "dpadmm describe" if study.kind == "statistics" else "dpadmm evaluate --epsilon"
        raise StudyError(f'the study is of kind = "{study.kind}" and trains nothing; take {instead}, or ask sites')
    if given is not None:
        return replace(study, public_rows=None), None if given is False else Path(given)
    if study.public_rows is None:
        return study, None
    try:
        return study, study.public_rows.verified()
    except DataError as error:
        raise DataError(f"{error}, or leave them out: --no-public (in Python public=False)") from None


def prior_from(study: Study, public: Path, *, beside: object = None) -> Prior:
    """What the rows of a public table say; it cannot be the private one that it stands ``beside``."""
    if isinstance(beside, str | PathLike) and _same_bytes(public, Path(beside)):
        raise DataError(
            f"{Path(beside)} is the public table itself, whose rows are not protected: train on other rows, or leave "
            "the public ones out: --no-public (in Python public=False)"
        )
    known = encode(study, public)
    return prior_of(study.problem, make_rows(known.features, known.labels, row_weights=known.row_weights))


def _same_bytes(one: Path, other: Path) -> bool:
    if one.is_dir() and other.is_dir():
        return one.samefile(other)
    if not (one.is_file() and other.is_file()):
        return False  # whoever reads them says so
    return one.stat().st_size == other.stat().st_size and PublicRows.of(one) == PublicRows.of(other)


def encode(study: Study, data: StrPath, *, by: str | None = None, intercept: bool | None = None) -> EncodedTable:
    """Encode a table for a study, which must define its columns; with its constant column, unless told otherwise."""
    if not isinstance(data, str | PathLike):
        raise DataError(
            f"a study's table is the path of a file, such as CSV or Parquet, not a {type(data).__name__}; write it to "
            "a file first, such as by to_parquet(path)"
        )
    if study.schema is None:
        raise StudyError(
            "the study only lists features; to train on a table it needs [columns] with public bounds and "
            "values, and a [label] (dpadmm study new drafts them)"
        )
    constant = study.training.intercept if intercept is None else intercept
    return encode_table(Path(data), study.encoding or study.schema, study.label, by=by, intercept=constant)


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
    """Train a study on a table that was encoded for it: its owners are the agents, or equal random shares.

    With a ``seed`` the noise is simulated: an experiment that can be repeated and protects nobody. Ctrl-C is
    raised as usual, unless what was done is to be kept.
    """
    rows, names = _laid_out(table, n_agents, seed)
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
        most_rows=study.most_rows,
    )
    if result.training != study.training:  # the rounds followed from the sizes
        study = replace(study, training=result.training)
    return replace(result, of_study=study, names=names)


def agent_sizes(table: EncodedTable, n_agents: int) -> Integers:
    """Rows of every agent, which are public: by the owners of the table, or equal shares."""
    if table.groups is not None:
        return np.bincount(table.groups, minlength=len(table.owners))
    return np.array([len(each) for each in np.array_split(np.arange(len(table.labels)), n_agents)])


def _laid_out(table: EncodedTable, n_agents: int, seed: int | None) -> tuple[Rows, Sequence[str]]:
    """The rows of a cohort and its names; rows in a file are written anew, agent by agent."""
    features, labels, weights = table.features, table.labels, table.row_weights
    owners, names = _deal(table, n_agents, seed)
    if not is_mapped(features):
        deal = of_codes(owners, names)
        order, offsets = deal.order, deal.offsets
        return make_rows(features, labels, order=order, offsets=offsets, names=names, row_weights=weights), names
    if len(names) == 1:
        return make_rows(features, labels, names=names, row_weights=weights), names
    places, offsets = group_order(owners, len(names))
    del owners  # large, as the places are
    features, labels = reorder(features, places), np.asarray(reorder(labels[:, None], places)).reshape(-1)
    if weights is not None:
        weights = np.asarray(reorder(weights[:, None], places)).reshape(-1)
    del places
    return make_rows(features, labels, offsets=offsets, names=names, row_weights=weights), names


def _deal(table: EncodedTable, n_agents: int, seed: int | None) -> tuple[NDArray[np.integer[Any]], Sequence[str]]:
    """The agent of every row, and the agents' names."""
    if table.groups is None:
        rng = np.random.default_rng(seed)
        return equal_owners(len(table.labels), n_agents, rng), numbered(n_agents)
    if n_agents != 1:
        raise StudyError("the table says whose rows are whose, so the number of agents cannot be chosen")
    return table.groups, tuple(table.owners)
