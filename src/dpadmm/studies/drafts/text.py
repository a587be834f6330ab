"""The text of a study file from a draft, with comments for the reviewer."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from importlib.resources import files
from operator import getitem
from pathlib import Path
from textwrap import wrap
from typing import Any

from dpadmm.data.schema_file import problems
from dpadmm.errors import StudyError
from dpadmm.parameters.suggestions import unknown_name
from dpadmm.studies.drafts.draft import Draft, DraftColumn
from dpadmm.studies.reading import study_from, table_parameters
from dpadmm.studies.study import FORMAT, Study

CONFIRM = "# confirm: public?"
NOTES = {
    "allow": "  # confirm: set to true (without quotes), or remove the column",
    "released": "  # center and scale are from the private release of the statistics study with this hash",
    "unseen": "  # values that do not occur in that table; explain lists them last",
}
WIDTH = 100


def study_text(draft: Draft, name: str, folder: Path = Path()) -> str:
    """Return the text of a study file in ``folder``, with its source and the remaining steps as comments.

    Names and values round-trip through TOML.
    """
    lines = [
        *_head(draft, name),
        *_row_norm(draft),
        "",
        "[label]",
        *(line for note in draft.comments for line in _commented(note)),
    ]
    lines += _entries(draft.label, confirm=draft.is_inferred)
    lines += [*_columns(draft.columns, confirm=draft.is_inferred), "", *_public_rows(draft, folder), *_training(draft)]
    text = "\n".join(lines) + "\n"
    wrong = problems(tomllib.loads(text))
    if wrong:
        raise StudyError(f"{draft.source}: {wrong[0]}")
    return text


def default_name(draft: Draft) -> str:
    """Return the title of a study, from its label and the name of the table."""
    return f"{draft.label['column']}, by {Path(draft.source).stem}"


def confirmed_study(
    draft: Draft, name: str | None, *, epsilon: float, delta: float, allow: Collection[str] = ()
) -> Study:
    """Return the study of a draft whose values are all public. ``allow``: columns known before the outcome."""
    table = tomllib.loads(study_text(draft, name or default_name(draft), Path()))
    columns = table["columns"]
    for each in allow:
        if each not in columns:
            raise unknown_name("column", each, list(columns), "the draft")
    if asked := [column for column in draft.columns if column.has_question and column.name not in allow]:
        questions = "; ".join(f"column {column.name!r} {column.comment}" for column in asked)
        raise StudyError(f"{questions}. Keep it with confirm(allow=[...]), or leave it out with drop(...)")
    for each in allow:
        columns[each]["allow"] = True
    for entry in (table["label"], *columns.values(), *([table["public_rows"]] if "public_rows" in table else [])):
        entry.pop("public", None)
    table["privacy"] = {"epsilon": epsilon, "delta": delta}
    return study_from(table, "draft")


def statistics_text(columns: Sequence[DraftColumn], name: str, source: str) -> str:
    """Return the text of a statistics study of these columns."""
    bins, tables = {parameter.name: parameter for parameter in table_parameters("statistics")}["bins"], '[["a", "b"]]'
    lines = [f"# A statistics study, drafted from {_quoted(source)}. It releases counts, means and tables."]
    lines += ["# Check it with: dpadmm study check FILE", f'format = "{FORMAT}"', 'kind = "statistics"']
    lines += [f"name = {_quoted(name)}", "", "[statistics]"]
    lines += ["# All columns and tables share the budget. A number counts three times: bins, mean and variance."]
    lines += [f"# tables = {tables}   # two-way tables of two columns each", f"# bins = {bins.default}"]
    return "\n".join([*lines, *_columns(columns, confirm=False), "", _privacy()]) + "\n"


def _columns(columns: Sequence[DraftColumn], *, confirm: bool) -> Iterator[str]:
    """Yield a TOML table for each column, and a comment for each column that is left out."""
    for column in columns:
        if column.about is not None:
            yield from ("", f"[columns.{_key(column.name)}]", *_commented(column.comment))
            yield from _entries(column.about, confirm=confirm and len({*column.about} - {"allow"}) > 1)
    if left_out := [column for column in columns if column.about is None]:
        yield from ("", "# Left out:")
        for column in left_out:
            yield from _commented(f"{_quoted(column.name)}: {column.comment}", "  ")


def evaluation_text(study: Study) -> str:
    """Return the text of an evaluation study."""
    values = study.as_json()
    head = ["# An evaluation study: measures a trained model on the sites' rows, with one noisy release per site."]
    head += [f'format = "{FORMAT}"', 'kind = "evaluation"', f"name = {_quoted(study.name)}"]
    plain = {
        name: values[name] for name in ("max_rows_per_site", "row_norm", "features", "classes") if values.get(name)
    }
    lines = [*head, *(f"{name} = {_value(value)}" for name, value in plain.items())]
    for name in ("evaluation", "label"):
        if name in values:
            lines += ["", f"[{name}]", *_entries(_without_unset(values[name]), confirm=False)]
    for column in values.get("columns", ()):
        about = {key: value for key, value in _without_unset(column).items() if key != "name"}
        lines += ["", f"[columns.{_key(column['name'])}]", *_entries(about, confirm=False)]
    for name in ("loss", "training", "privacy"):
        lines += ["", f"[{name}]", *_entries(values[name], confirm=False)]
    return "\n".join(lines) + "\n"


def _without_unset(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the set entries; lists as tuples, which are written on several lines."""
    entries = {key: value for key, value in about.items() if value is not None and value != []}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entries.items()}


def _privacy() -> str:
    """Return the ``[privacy]`` table of the template."""
    template = files("dpadmm.studies").joinpath("templates", "study.toml").read_text(encoding="utf-8")
    return template[template.index("[privacy]") : template.index("[provenance]")].rstrip()


def confirmed_text(text: str, places: Collection[tuple[str, ...]]) -> str:
    """Set ``public = true`` in these tables of a study's text, such as ``("columns", "age")``.

    The comment that a draft adds to such a line is removed. All other bytes are unchanged. If the text cannot be edited
    line by line, raise StudyError.
    """
    wanted, lines = tomllib.loads(text), text.split("\n")
    at: tuple[str, ...] = ()
    for place in places:
        reduce(getitem, place, wanted)["public"] = True
    for i, line in enumerate(lines):
        at = _heading(line) or at
        if at in places and (marked := re.match(r"(\s*public\s*=\s*)false\b(.*)", line, re.DOTALL)):
            lines[i] = f"{marked[1]}true{_without_question(marked[2])}"
    changed = "\n".join(lines)
    if tomllib.loads(changed) != wanted:
        raise StudyError("cannot edit this file, because its layout differs from a draft; set public = true by hand")
    return changed


def _without_question(comment: str) -> str:
    """Remove the draft's comment from the end of a line; keep a user's comment after it."""
    alone = rf"\s*{re.escape(CONFIRM)}[ \t]*(?=\r?$)"
    return re.sub(alone, "", comment).replace(CONFIRM, "#", 1)


def secured_text(text: str, min_honest_sites: int, max_rows_per_site: int) -> str:
    """Enable secure aggregation, which is commented out, in the text of a draft or example."""
    text = re.sub(
        r'(?m)^# (aggregation = "secure")\n# min_honest_sites = .*',
        rf"\g<1>\nmin_honest_sites = {min_honest_sites}",
        text,
    )
    comment = "# Maximum number of rows per site. Every site scales its share of the noise to this number."
    return re.sub(r"(?m)^(name = .*)", rf"\g<1>\n\n{comment}\nmax_rows_per_site = {max_rows_per_site}", text, count=1)


def _heading(line: str) -> tuple[str, ...]:
    """Return ``("columns", "age")`` for ``[columns.age]``, and ``()`` for a line that is not a table header."""
    try:
        table: Any = tomllib.loads(line.rstrip("\r")) if line.lstrip().startswith("[") else {}
    except tomllib.TOMLDecodeError:
        return ()
    path: tuple[str, ...] = ()
    while isinstance(table, dict) and table:
        ((name, table),) = table.items()
        path += (name,)
    return path


def _head(draft: Draft, name: str) -> Iterator[str]:
    yield f"# A study, drafted from {_quoted(draft.source)}."
    if draft.is_inferred:
        yield "# Bounds, centers, scales, values and classes were inferred from the data. They must be public"
        yield "# knowledge, never taken from private rows. Review and correct each one. Then set public = true by hand,"
        yield "# or confirm them in groups with: dpadmm study confirm FILE"
    yield "# Check it with: dpadmm study check FILE"
    yield f'format = "{FORMAT}"'
    yield f"name = {_quoted(name)}"
    yield from ("", *MISSED_ROUNDS)


MISSED_ROUNDS = (
    "# Studies across sites: whether sites may miss rounds. A missed round is not charged.",
    "# allow_missed_rounds = true",
    "# quorum = 3             # minimum number of answers per round; default: all sites",
    "# deadline = 60          # seconds after which a round closes if the quorum has answered",
)


def _row_norm(draft: Draft) -> Iterator[str]:
    if draft.row_norm is not None:
        yield "# Rows with a larger norm are clipped to it. Chosen so that few rows of the table are clipped."
        yield f"row_norm = {_value(draft.row_norm)}"


def _entries(about: Mapping[str, Any], *, confirm: bool) -> Iterator[str]:
    for key, value in about.items():
        note = "  # negative first" if key == "classes" and len(value) == 2 else NOTES.get(key, "")
        yield from _assignment(key, value, note)
    if confirm:
        yield f"public = false  {CONFIRM}"


def _assignment(key: str, value: Any, note: str) -> Iterator[str]:
    """Yield ``key = value``, with long lists on several lines."""
    whole = f"{key} = {_value(value)}{note}"
    if not isinstance(value, tuple) or len(whole) <= WIDTH:
        yield whole
        return
    yield f"{key} = [{note}"
    line = "   "
    for item in map(_value, value):
        if len(line) + len(item) + 2 > WIDTH and line.strip():
            yield line
            line = "   "
        line += f" {item},"
    yield line
    yield "]"


def _public_rows(draft: Draft, folder: Path) -> Iterator[str]:
    """Yield ``[public_rows]``, or a comment with the reason why there are none."""
    if draft.not_public:
        yield from _commented(f"The rows of {_quoted(draft.source)} are not used as public rows: {draft.not_public}.")
        yield ""
    if draft.public_rows is None or draft.public_rows.file is None:
        return
    yield "# Public rows used for initialisation; down-weighted if the private data disagree. ε does not protect them."
    yield "# Confirm if anyone may see every row; otherwise delete this table. Sites do not need the file."
    yield "[public_rows]"
    file = os.path.relpath(Path(draft.public_rows.file).resolve(), folder.resolve())
    yield from _entries({"file": file, "sha256": draft.public_rows.sha256}, confirm=True)
    yield ""


def _training(draft: Draft) -> Iterator[str]:
    """Yield the template's training tables, with the loss for this label, and defaults as comments."""
    template = files("dpadmm.studies").joinpath("templates", "study.toml").read_text(encoding="utf-8")
    loss = draft.loss or {0: "squared", 2: "logistic"}.get(len(draft.label.get("classes", ())), "softmax")
    section = re.sub(r'(?m)^name = "logistic".*', f'name = "{loss}"', template[template.index("[method]") :].rstrip())
    tables = tomllib.loads(section)
    yield "# Uncomment a line to change a default."
    for block in section.split("\n\n"):
        table = block[1 : block.index("]")]
        yield block
        if table == "provenance":
            return
        for parameter in table_parameters(table, tables[table].get("name")):
            name, default = parameter.name, parameter.default
            if name not in tables[table] and default is not None and f"# {name} = " not in block:
                yield f"# {name} = {_value(default)}"
        yield ""


def _commented(comment: str, indent: str = "") -> list[str]:
    return [
        f"# {line}" for line in wrap(_printable(comment), WIDTH - 2, initial_indent=indent, subsequent_indent=indent)
    ]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Return a TOML string, which has the syntax of JSON."""
    return json.dumps(_printable(text), ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
