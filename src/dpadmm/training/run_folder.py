"""Write the folder of a run: settings, measures, a summary and the models.

``settings.toml``  the settings used; ``dpadmm simulate --config`` runs it again
``trace.csv``      one line per run and measured round
``summary.json``   settings, measures at the end, privacy, versions
``model-*.npz``    the trained models
``model-*.privacy.json``  the privacy report of each run with Gaussian noise, for ``dpadmm verify``
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import dpadmm
from dpadmm.engine.metrics import spread
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.models.run import Result
from dpadmm.parameters.fields import for_json


def check_folder(folder: Path, *, overwrite: bool = False) -> Path:
    """Raise DataError, before anything is computed, if a folder cannot be used for a run."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose another output folder")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise DataError(f"{folder} is not empty; choose another output folder, or give --overwrite")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise DataError(f"{folder} cannot be created, because {nearest} is a file; choose another output folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DataError(f"{folder} cannot be written to; choose another output folder")
    return folder


def write_run(
    folder: Path,
    runs: Mapping[str, Result],
    *,
    how: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    new: Iterable[str] | None = None,
) -> None:
    """Write the files of named runs. Each file is replaced atomically.

    Parameters
    ----------
    runs : mapping
        Results by name.
    how : mapping
        Settings that repeat the runs.
    extra : mapping, optional
        Further entries of the summary.
    new : iterable of str, optional
        Runs whose models are not written yet. Default: all.
    """
    write_text(folder / "settings.toml", to_toml(how))
    write_text(folder / "trace.csv", _trace_csv(runs))
    write_text(folder / "summary.json", json.dumps(summary(runs, how, extra), indent=2, allow_nan=False))
    for name in runs if new is None else new:
        runs[name].model.save(folder / f"model-{name}.npz")
        _write_privacy_report(folder / f"model-{name}.privacy.json", runs[name])


def remove_leftovers(folder: Path, runs: Iterable[str]) -> None:
    """Remove models, privacy reports and figures of earlier runs."""
    kept = {file for name in runs for file in (f"model-{name}.npz", f"model-{name}.privacy.json")}
    for pattern in ("model-*.npz", "model-*.privacy.json", "convergence.*"):
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink()


def _write_privacy_report(path: Path, result: Result) -> None:
    try:
        content = result.privacy.to_bytes()
    except StudyError:  # no noise, or other noise than Gaussian
        path.unlink(missing_ok=True)
    else:
        with atomic_file(path) as out:
            out.write(content)


def finished(runs: Iterable[Result]) -> list[Result]:
    """Return the runs that were not interrupted, or all runs if every run was. A mean must not mix both."""
    results = list(runs)
    return [result for result in results if not result.interrupted] or results


def measures(runs: Iterable[Result]) -> dict[str, Any]:
    """Return mean and spread of each measure at the end of repeated runs."""
    return {
        name: for_json({"mean": np.mean(values), "std": spread(values), "values": values})
        for name, values in end_values(runs).items()
    }


def summary(
    runs: Mapping[str, Result], how: Mapping[str, Any], extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return settings, results and privacy loss as JSON values, with None for values that are not finite."""
    return {
        "version": dpadmm.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "settings": {name: for_json(value) for name, value in how.items()},
        "runs": {name: for_json(result.summary()) for name, result in runs.items()},
        **for_json(extra or {}),
    }


def end_values(runs: Iterable[Result]) -> dict[str, list[float]]:
    """Return each measure at the end of each run: one value per run, by name."""
    ends = [result.trace.last() for result in runs if len(result.trace)]
    return {name: [end[name] for end in ends] for name in (ends[0] if ends else {}) if name != "round"}


def used_settings(result: Result) -> dict[str, Any]:
    """Return the settings of a run, without those that are None, as TOML values."""
    return {name: for_json(value) for name, value in result.training.to_dict().items() if value is not None}


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as out:
        out.write(text.encode())


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML: strings, numbers, booleans, lists of them, and one level of inline tables.

    Examples
    --------
    >>> print(to_toml({"loss": "logistic", "epsilon": [0.5, 1.0], "intercept": False}), end="")
    loss = "logistic"
    epsilon = [0.5, 1.0]
    intercept = false
    """
    # The JSON form is valid TOML, except that TOML has no surrogate pairs and DEL must be escaped
    lines = (f"{name} = {_toml_value(value)}\n" for name, value in table.items())
    return "".join(lines).replace("\x7f", "\\u007f")


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{name} = {_toml_value(item)}" for name, item in value.items() if item is not None)
        return f"{{{', '.join(entries)}}}"
    return json.dumps(for_json(value), ensure_ascii=False)


def _trace_csv(runs: Mapping[str, Result]) -> str:
    out = io.StringIO()
    columns = next((result.trace.columns for result in runs.values() if len(result.trace)), {"round": ()})
    writer = csv.DictWriter(out, ["run", "seed", *columns], lineterminator="\n")
    writer.writeheader()
    for name, result in runs.items():
        for values in zip(*result.trace.columns.values(), strict=True):
            row = dict(zip(result.trace.columns, values, strict=True))
            writer.writerow({"run": name, "seed": result.settings.seed, **row, "round": int(row["round"])})
    return out.getvalue()
