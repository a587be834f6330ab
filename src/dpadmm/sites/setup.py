"""Set up a site: the text of its ``site.toml``, and everything that is wrong with its table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dpadmm.errors import DataError, StudyError
from dpadmm.parameters.suggestions import unknown_name
from dpadmm.sites.site import Site, counted
from dpadmm.trusted.unit import Persons


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """The settings of a new ``site.toml`` that an owner must choose; the others keep the template's defaults."""

    table: Path
    label: str | None = None
    person: str | None = None
    """The column that identifies a person."""
    rows_per_person: int = 1
    epsilon: float = 1.0
    delta: float = 1e-5
    max_rounds: int = 1000
    min_rows: int = 100

    def text(self, folder: Path) -> str:
        """Return the ``site.toml`` in ``folder``: the commented template with these values."""
        table = self.table.absolute()
        inside = table.is_relative_to(folder.absolute())
        shown = table.relative_to(folder.absolute()) if inside else table
        label = "# label = " + _quoted("outcome") if self.label is None else f"label = {_quoted(self.label)}"
        lines = {
            r'table = "table\.csv"': f"table = {_quoted(str(shown))}",
            r'label = "outcome"': label,
            r'# column = "patient"': "" if self.person is None else f"column = {_quoted(self.person)}",
            r"# rows = 1": f"rows = {self.rows_per_person}",
            r"# The numbers below are examples: replace them with your own limits\.\n": "",
            r"epsilon = 1\.0": f"epsilon = {self.epsilon!r}",
            r"delta = 1e-5": f"delta = {self.delta!r}",
            r"max_rounds = 1000": f"max_rounds = {self.max_rounds}",
            r"min_rows = 100": f"min_rows = {self.min_rows}",
            r"epsilon_if_others_collude = 2\.0": f"epsilon_if_others_collude = {max(2.0, 2.0 * self.epsilon)!r}",
        }
        text = files("dpadmm.sites").joinpath("templates", "site.toml").read_text(encoding="utf-8")
        for pattern, line in lines.items():
            text, found = re.subn(f"^{pattern}", lambda _, line=line: line, text, count=1, flags=re.MULTILINE)  # type: ignore[misc]
            assert found, pattern
        return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def columns_of(table: Path) -> list[str]:
    """Return the columns of a table, none for an archive. Raise ``DataError`` if it cannot be read."""
    from dpadmm.data.reader import column_names, has_named_columns  # loads pyarrow

    if not has_named_columns(table) and table.exists() and table.suffix == ".npz":
        return []
    return column_names(table)


def table_problems(site: Site) -> tuple[Persons | None, list[str], list[str]]:
    """Return the persons in a site's table, its columns, and one sentence for each problem: for the owner only.

    The persons are None if the table cannot be used.
    """
    try:
        columns = columns_of(site.table)
    except DataError as problem:
        return None, [], [str(problem)]
    roles = {"label": site.label, "person": site.policy.unit.column}
    problems = [
        f"the {role} column is not in the table: {unknown_name('column', name, columns, site.table)}"
        for role, name in roles.items()
        if columns and name is not None and name not in columns
    ]
    if site.label is not None and site.label in columns:
        problems += _label_problems(site.table, site.label)
    if problems:
        return None, columns, problems
    try:
        return site.rows.persons(), columns, []
    except (DataError, StudyError) as problem:
        return None, columns, [str(problem)]


def _label_problems(table: Path, label: str) -> list[str]:
    """Return the problems of the label column: no value, or only one."""
    import pyarrow.compute as pc

    from dpadmm.data.reader import open_batches

    values, n_rows = set[object](), 0
    for batch in open_batches(table, [label]):
        n_rows += batch.num_rows
        if len(values) < 2:
            values |= set(pc.unique(pc.drop_null(batch.column(label))).to_pylist()) - {""}
    if not n_rows:
        return []  # reading the persons gives the error
    if not values:
        return [f"the label {label!r} is missing in all {counted(n_rows, 'row', 'rows')}"]
    if len(values) == 1:
        return [f"the label {label!r} has the same value in all rows, so nothing can be learned from it"]
    return []


def problem_text(path: Path, problems: Sequence[str]) -> str:
    """Return one message for all problems of a table."""
    if len(problems) == 1:
        return problems[0]
    return f"{path}: {len(problems)} problems: " + "; ".join(problems)
