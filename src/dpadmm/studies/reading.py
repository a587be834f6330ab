"""Read studies from their TOML files, and list the problems and unconfirmed values of a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpadmm.data.schema_file import confirmed, rows_from, suspicious_columns, unconfirmed
from dpadmm.data.schema_file import problems as rows_problems
from dpadmm.errors import StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.files.toml import read_toml
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import KINDS, StatisticsRelease
from dpadmm.parameters.fields import Parameter, nearest, parameters, problems
from dpadmm.parameters.suggestions import first_of, near_name
from dpadmm.parameters.text import text_problems
from dpadmm.studies.checks import DEPLOYABLE, dotted, not_deployable, provenance_parameters
from dpadmm.studies.public_rows import is_unconfirmed, public_rows_from, public_rows_problems
from dpadmm.studies.settings import CHOICES, Training, choice_problems
from dpadmm.studies.study import ADJACENCY, FORMAT, OPTIONAL, TABLES, TRAINING, TRAINING_KEYS, Study, tables_of

KEYS = (
    *("format", "kind", "name", "adjacency", "label", "columns", "row_norm", "interactions"),
    *("features", "classes", "public_rows", *CHOICES, *TABLES, *KINDS),
    *("provenance", "allow_missed_rounds", *OPTIONAL, "roster", "intercept_value"),
)
"""Top-level keys of a study file."""


def read_study(path: StrPath) -> Study:
    """Read a study from its TOML file.

    Parameters
    ----------
    path : str or path-like
        The file. Paths in it are relative to its folder.

    Returns
    -------
    Study
        The study, checked and immutable.

    Raises
    ------
    StudyError
        If the file is not a valid study, or contains values that are not confirmed as public.
    """
    file = Path(path)
    return study_from(read_toml(file), str(file), file.parent)


def study_from(table: Mapping[str, Any], where: str = "study", folder: Path = Path()) -> Study:
    """Build a study from the parsed TOML file in ``folder``, or from :meth:`Study.as_json`.

    Unknown keys raise StudyError.
    """
    if not isinstance(table, Mapping):
        raise StudyError(f"{where}: a study must be a table, not {table!r:.60}")
    for problem in _file_problems(table, where):
        raise StudyError(problem)
    given: dict[str, Any] = {
        name: table[name]
        for name in ("name", "features", "classes", "provenance", "allow_missed_rounds", *OPTIONAL, "roster")
        if name in table
    }
    try:
        if "columns" in table:
            given["label"], given["schema"] = rows_from(table)
        elif table.keys() & {"label", "row_norm", "interactions"}:
            raise StudyError("[label], row_norm and interactions require [columns]; with features, set classes instead")
        if "public_rows" in table:
            given["public_rows"] = public_rows_from(table["public_rows"], folder)
        for problem in _training_problems(table):
            raise StudyError(problem)
        return Study(**given, training=_training_from(table))
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('study: ')}") from None


def study_problems(table: Mapping[str, Any]) -> list[str]:
    """Return a message for each problem of a study's table; unconfirmed values are not problems.

    Examples
    --------
    >>> table = {"format": "dpadmm-study/2", "name": "x", "features": ["a"], "training": {"rounds": 3}}
    >>> study_problems(table)
    ["training: unknown setting 'rounds'; did you mean 'n_rounds'?"]
    """
    messages = _file_problems(table, "study")
    if table.get("format") != FORMAT:
        return [message.removeprefix("study: ") for message in messages]
    if "columns" in table and "features" not in table:
        messages += rows_problems(table) or suspicious_columns(table)
    messages += _training_problems(table)
    if isinstance(table.get("provenance"), Mapping):
        messages += problems(dotted(table["provenance"]), provenance_parameters(), "provenance")
    if "public_rows" in table:
        messages += public_rows_problems(table["public_rows"])
    if not messages:
        try:
            study_from(_confirm_all(table) if confirmations(table) else table)
        except StudyError as error:
            messages = [str(error)]
    return [" ".join(message.removeprefix("study: ").split()) for message in messages]


class Confirmation(NamedTuple):
    """Values inferred from the data that a person must confirm as public."""

    place: tuple[str, ...]
    """Table in the study file: ``("label",)``, ``("columns", name)`` or ``("public_rows",)``."""
    name: str
    group: Literal["label", "numbers", "categories", "public-rows"]
    values: str


def confirmations(table: Mapping[str, Any]) -> list[Confirmation]:
    """Return the unconfirmed values of a study's table; none if its text or columns have problems."""
    if "columns" not in table or "features" in table or text_problems(table) or rows_problems(table):
        return []
    pending = []
    for _, entry in unconfirmed(table):
        if "name" in entry:
            group: Any = "numbers" if entry["kind"] in ("number", "plain") else "categories"
            pending.append(Confirmation(("columns", entry["name"]), entry["name"], group, _format_values(entry)))
        else:
            pending.append(Confirmation(("label",), entry["column"], "label", _format_values(entry)))
    entry = table.get("public_rows", {})
    if is_unconfirmed(entry) and not public_rows_problems(entry):
        name = entry.get("file", entry["sha256"])
        pending.append(Confirmation(("public_rows",), name, "public-rows", "all rows of the table"))
    return pending


def _confirm_all(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the study's table with all values confirmed."""
    rows = {"public_rows": {**table["public_rows"], "public": True}} if "public_rows" in table else {}
    return {**confirmed(table), **rows}


def _training_from(table: Mapping[str, Any]) -> Training:
    """Build the training from a study's table whose single tables are valid."""
    given: dict[str, Any] = {what: table[what] for what in CHOICES if what in table}
    for name in TABLES:
        given |= table.get(name, {})
    if (kind := _kind(table)) != TRAINING:
        given["method"] = KINDS[kind](**table.get(kind, {}))
    return Training(**given)


def _kind(table: Mapping[str, Any]) -> str:
    """Return the kind of study."""
    return str(table.get("kind", TRAINING))


def _file_problems(table: Mapping[str, Any], where: str) -> list[str]:
    """Return the problems of the top-level keys."""
    if table.get("format") != FORMAT:
        return [f'{where}: format must be "{FORMAT}", not {table.get("format")!r:.60}']
    messages = [f"{where}: {problem}" for problem in text_problems(table)]
    messages += [f"{where}: {_unknown_key(str(name))}" for name in table if name not in KEYS]
    kinds = (TRAINING, *KINDS)
    if _kind(table) not in kinds:
        message = f"{where}: kind must be one of {', '.join(kinds)}, not {table['kind']!r:.60}"
        return [*messages, f"{message}; {nearest(_kind(table), kinds)}"]
    messages += _kind_problems(table, where)
    if table.get("adjacency", ADJACENCY) != ADJACENCY:
        messages.append(f'{where}: adjacency must be "{ADJACENCY}", not {table["adjacency"]!r:.60}')
    if "name" not in table:
        messages.append(f"{where}: name is missing")
    if ("columns" in table) == ("features" in table):
        messages.append(f"{where}: give either [columns] with public bounds and values, or a list of features")
    if table.get("intercept_value", INTERCEPT) != INTERCEPT:
        messages.append(
            f"{where}: intercept_value is {table['intercept_value']!r:.60}, but {INTERCEPT} in this version of dpadmm; "
            "use the same version at the server and all sites"
        )
    return messages


def _unknown_key(name: str, known: Collection[str] = KEYS) -> str:
    """Return the message for an unknown key, with the key that was probably meant and its section."""
    sections = {table: [each.name for each in table_parameters(table)] for table in (*TABLES, *KINDS)}
    for what, classes in CHOICES.items():
        sections[what] = [own.name for cls in classes.values() for own in parameters(cls)]
    if near_name(name, known) is None:
        for section, keys in sections.items():
            if near := near_name(name, keys):
                return f"unknown setting {name!r:.60}; did you mean {near!r} under [{section}]?"
        if known is not KEYS and (near := near_name(name, ("name", "allow_missed_rounds", *OPTIONAL))):
            return f"unknown setting {name!r:.60}; did you mean {near!r} at the top of the file, before all sections?"
    return f"unknown setting {name!r:.60}; {nearest(name, known)}"


def _kind_problems(table: Mapping[str, Any], where: str) -> list[str]:
    """Return a message for each entry that does not apply to this kind of study."""
    kind = _kind(table)
    allowed = tables_of(kind)
    unfit = [f"[{name}]" for name in (*CHOICES, *TABLES, *KINDS) if name in table and name not in allowed]
    if kind != TRAINING:
        others = {"public_rows", "provenance", *(("label", "row_norm") if kind == StatisticsRelease.name else ())}
        unfit += [f"{name!r:.60}" for name in table if name in others and table[name]]
        if isinstance(table.get("training"), Mapping):
            unfit += [f"training: {key!r:.60}" for key in table["training"] if key not in TRAINING_KEYS[kind]]
    return [f"{where}: {entry} does not apply to kind = {kind!r}; remove it" for entry in unfit]


def table_parameters(table: str, name: str | None = None) -> Sequence[Parameter]:
    """Return the parameters of a training table of a study file; ``name`` selects the class of a choice."""
    if table in TABLES:
        known = {parameter.name: parameter for parameter in parameters(Training)}
        return [known[key].single() for key in TABLES[table]]
    if table in KINDS:
        return parameters(KINDS[table])
    return parameters(CHOICES[table][name]) if name is not None else ()


def _training_problems(table: Mapping[str, Any]) -> list[str]:
    """Return the problems of each training table, checked separately."""
    messages = []
    for name, entries in ((name, table[name]) for name in (*CHOICES, *TABLES, *KINDS) if name in table):
        if not isinstance(entries, Mapping):
            messages.append(f"{name} must be a table, such as [{name}], not {entries!r:.60}")
        elif name in TABLES or name in KINDS:
            known = {parameter.name: parameter for parameter in table_parameters(name)}
            messages += [f"{name}: {_unknown_key(str(key), known)}" for key in entries if key not in known]
            messages += problems({key: entries[key] for key in entries if key in known}, known.values(), name)
        elif name == "method" and entries.get("name") in [key for key in CHOICES[name] if key not in DEPLOYABLE]:
            messages.append(f"{name}: {not_deployable(entries['name'])}")
        else:
            messages += choice_problems(name, entries)
    return messages


def _format_values(entry: Mapping[str, Any]) -> str:
    """Format the inferred values of a column or label."""
    keys = (
        *("bounds", "center", "scale", "values", "unseen", "classes", "bins"),
        *("exposure_bound", "weight_bound", "class_weight"),
    )
    values = {key: entry[key] for key in keys if key in entry}
    return ", ".join(f"{key} {first_of(value) if isinstance(value, list) else value}" for key, value in values.items())
