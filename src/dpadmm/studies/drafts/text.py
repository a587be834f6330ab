"""A draft as the text of a study file, with comments for whoever looks at it."""

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
from dpadmm.studies.drafts.draft import Draft, DraftColumn
from dpadmm.studies.study import FORMAT, Study, table_parameters

CONFIRM = "# confirm: public?"
NOTES = {
    "allow": "  # confirm: say true (without quotes), or leave the column out",
    "released": "  # center and scale come from a private release: the statistics study of this hash",
    "unseen": "  # no row of that table is one of these; explain shows them last",
}
WIDTH = 100


def study_text(draft: Draft, name: str, folder: Path = Path()) -> str:
    """The file of a study in ``folder``; it says what it was made of, and what is to be done.

    Every name and value is written so that reading the file gives it back.
    """
    lines = [*_head(draft, name), "", "[label]", *(line for note in draft.comments for line in _commented(note))]
    lines += _entries(draft.label, confirm=draft.confirm)
    lines += [*_columns(draft.columns, confirm=draft.confirm), "", *_public_rows(draft, folder), *_training(draft)]
    text = "\n".join(lines) + "\n"
    wrong = problems(tomllib.loads(text))
    if wrong:
        raise StudyError(f"{draft.source}: {wrong[0]}")
    return text


def statistics_text(columns: Sequence[DraftColumn], name: str, source: str) -> str:
    """The file of a statistics study of these columns."""
    bins, tables = {each.name: each for each in table_parameters("statistics")}["bins"], '[["a", "b"]]'
    lines = [f"# A statistics study, drafted from {_quoted(source)}: what it releases is counts, means and tables."]
    lines += ["# Check it with: dpadmm study check FILE", f'format = "{FORMAT}"', 'kind = "statistics"']
    lines += [f"name = {_quoted(name)}", "", "[statistics]"]
    lines += [
        "# Every column and every table share the budget; a number, with mean and variance, takes as much as three."
    ]
    lines += [f"# tables = {tables}   # two-way tables of two columns each", f"# bins = {bins.default}"]
    return "\n".join([*lines, *_columns(columns, confirm=False), "", _privacy()]) + "\n"


def _columns(columns: Sequence[DraftColumn], *, confirm: bool) -> Iterator[str]:
    """A table for every column, and a comment for those that are left out."""
    for each in columns:
        if each.about is not None:
            yield from ("", f"[columns.{_key(each.name)}]", *_commented(each.comment))
            yield from _entries(each.about, confirm=confirm and len({*each.about} - {"allow"}) > 1)
    if left_out := [each for each in columns if each.about is None]:
        yield from ("", "# Left out:")
        for each in left_out:
            yield from _commented(f"{_quoted(each.name)}: {each.comment}", "  ")


def evaluation_text(study: Study) -> str:
    """The file of an evaluation study."""
    said = study.as_json()
    head = ["# An evaluation study: how good a finished model is on the rows of sites, from one release with noise."]
    head += [f'format = "{FORMAT}"', 'kind = "evaluation"', f"name = {_quoted(study.name)}"]
    plain = {name: said[name] for name in ("most_rows", "row_norm", "features", "classes") if said.get(name)}
    lines = [*head, *(f"{name} = {_value(value)}" for name, value in plain.items())]
    for name in ("evaluation", "label"):
        if name in said:
            lines += ["", f"[{name}]", *_entries(_filled(said[name]), confirm=False)]
    for each in said.get("columns", ()):
        about = {key: value for key, value in _filled(each).items() if key != "name"}
        lines += ["", f"[columns.{_key(each['name'])}]", *_entries(about, confirm=False)]
    lines += ["", "[loss]", *_entries(said["loss"], confirm=False)]
    lines += ["", "[training]", *_entries(said["training"], confirm=False)]
    lines += ["", "[privacy]", *_entries(said["privacy"], confirm=False)]
    return "\n".join(lines) + "\n"


def _filled(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a table says, without what it leaves open; lists as tuples, which are written on several lines."""
    kept = {key: value for key, value in about.items() if value is not None and value != []}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()}


def _privacy() -> str:
    """The template's table about the budget."""
    template = files("dpadmm.studies").joinpath("templates", "study.toml").read_text(encoding="utf-8")
    return template[template.index("[privacy]") : template.index("[provenance]")].rstrip()


def confirmed_text(text: str, places: Collection[tuple[str, ...]]) -> str:
    """Set ``public = true`` in these tables of a study's text, such as ``("columns", "age")``.

    The question that a draft adds to such a line is removed. All other bytes are kept. Text in which this cannot be
    done line by line is refused.
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
        raise StudyError("this file writes its tables in another way than drafts do: say public = true by hand")
    return changed


def _without_question(comment: str) -> str:
    """Remove the draft's question from the end of a line; what a user wrote after it stays a comment."""
    alone = rf"\s*{re.escape(CONFIRM)}[ \t]*(?=\r?$)"
    return re.sub(alone, "", comment).replace(CONFIRM, "#", 1)


def secured_text(text: str, honest: int, most_rows: int) -> str:
    """The text of a draft or an example with secure aggregation, which is a comment in it."""
    text = re.sub(r'(?m)^# (trust = "secure_aggregation")\n# honest = .*', rf"\g<1>\nhonest = {honest}", text)
    why = "# No site has more rows than this; all draw their share of the noise for so many."
    return re.sub(r"(?m)^(name = .*)", rf"\g<1>\n\n{why}\nmost_rows = {most_rows}", text, count=1)


def _heading(line: str) -> tuple[str, ...]:
    """``[columns.age]`` -> ``("columns", "age")``; nothing for lines that begin no table."""
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
    if draft.confirm:
        yield "# Bounds, centers, scales, values and classes were read off that table. Each must be public knowledge,"
        yield "# never what private rows happen to hold: look at every one, correct it, and say public = true; by"
        yield "# hand, or in groups: dpadmm study confirm FILE"
    yield "# Check it with: dpadmm study check FILE"
    yield f'format = "{FORMAT}"'
    yield f"name = {_quoted(name)}"


def _entries(about: Mapping[str, Any], *, confirm: bool) -> Iterator[str]:
    for key, value in about.items():
        note = "  # negative first" if key == "classes" and len(value) == 2 else NOTES.get(key, "")
        yield from _written(key, value, note)
    if confirm:
        yield f"public = false  {CONFIRM}"


def _written(key: str, value: Any, note: str) -> Iterator[str]:
    """``key = value``; long lists on several lines."""
    whole = f"{key} = {_value(value)}{note}"
    if not isinstance(value, tuple) or len(whole) <= WIDTH:
        yield whole
        return
    yield f"{key} = [{note}"
    line = "   "
    for each in map(_value, value):
        if len(line) + len(each) + 2 > WIDTH and line.strip():
            yield line
            line = "   "
        line += f" {each},"
    yield line
    yield "]"


def _public_rows(draft: Draft, folder: Path) -> Iterator[str]:
    """The rows of the draft's table, or why training does not start from them."""
    if draft.not_public:
        yield from _commented(f"Training does not start from the rows of {_quoted(draft.source)}: {draft.not_public}.")
        yield ""
    if draft.public_rows is None or draft.public_rows.file is None:
        return
    yield "# Training starts at a model of these rows, trusted as far as the first private answers agree. No ε covers"
    yield "# them: confirm it if anyone may see every row, else delete this table. Only whoever trains or aggregates"
    yield "# needs the file."
    yield "[public_rows]"
    beside = os.path.relpath(Path(draft.public_rows.file).resolve(), folder.resolve())
    yield from _entries({"file": beside, "sha256": draft.public_rows.sha256}, confirm=True)
    yield ""


def _training(draft: Draft) -> Iterator[str]:
    """The template's tables about training, with the loss that fits the label, and defaults as comments."""
    template = files("dpadmm.studies").joinpath("templates", "study.toml").read_text(encoding="utf-8")
    loss = {0: "squared", 2: "logistic"}.get(len(draft.label.get("classes", ())), "softmax")
    section = re.sub(r'(?m)^name = "logistic".*', f'name = "{loss}"', template[template.index("[method]") :].rstrip())
    said = tomllib.loads(section)
    yield "# Uncomment a line to change a default."
    for block in section.split("\n\n"):
        table = block[1 : block.index("]")]
        yield block
        if table == "provenance":
            return
        for each in table_parameters(table, said[table].get("name")):
            if each.name not in said[table] and each.default is not None and f"# {each.name} = " not in block:
                yield f"# {each.name} = {_value(each.default)}"
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
    """A text as TOML writes it, which is as JSON does."""
    return json.dumps(_printable(text), ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
