"""Tables in databases: a small TOML file says where one is, and its rows are read as the database would export them.

A file such as ``visits.toml`` stands wherever a table's file may stand::

    database = "postgresql://db.clinic.example/research"   # or a DuckDB file, or database_env, database_file
    table = "visits"                                       # a table or a view; or query = "select ..."
    order_by = "visit_id"                                  # or several, such as ["patient", "visit_date desc"]

*Cells are text*, as in the database's own CSV export, and missing ones are empty. So what a cell becomes depends on no
other cell, and a table is the same rows, with the same digest, as its export.

*Rows have an order*, since a database promises none: which rows of a person count depends on it, and so does the
digest by which an agent knows its rows after a restart. Rows that ``order_by`` leaves equal are sorted by the text of
the cells that are read. What is equal then is one row to the study: nothing depends on the order between them, and no
table has to be refused for its ties.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import expanded
from dpadmm.files.toml import read_toml
from dpadmm.parameters.fields import check_names
from dpadmm.parameters.suggestions import unknown_name

ENTRIES = ("database", "database_env", "database_file", "table", "query", "order_by", "driver")
POSTGRESQL = "adbc_driver_postgresql"
BATCH_ROWS = 2**14
DUCKDB_CONFIG = {"memory_limit": "512MB"}
"""What is sorted beyond that goes to a folder beside the database, and not to most of the memory."""

SETTINGS = ("client_encoding = 'UTF8'", "datestyle = 'ISO'", "extra_float_digits = 1", "transaction_read_only = on")
"""Of PostgreSQL: others may be preset for a user or a database, and change what cells look like."""

_SECRET = re.compile(r"://[^@/?#]*:.*@|(?:passw|pwd|secret|token)\w*\s*=", re.IGNORECASE)
_STATISTICS = "export the table as CSV or Parquet there, or with pandas"
_ADVICE = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV in UTF-8 (.csv)"),
    **dict.fromkeys(
        (".sqlite", ".sqlite3", ".db"),
        "SQLite's columns have no types: export the table as CSV (sqlite3 -header -csv), or copy it into DuckDB",
    ),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".rds"), _STATISTICS),
    **dict.fromkeys(
        (".svm", ".libsvm", ".svmlight"),
        "read it with sklearn.datasets.load_svmlight_file, and save features and labels as .npz",
    ),
    **dict.fromkeys(
        (".duckdb", ".ddb"),
        "for a database, write a file such as visits.toml that says database, table and order_by",
    ),
}


def advice(path: Path) -> str:
    """What to do with a file that is no table here; nothing where that is not known."""
    return _ADVICE.get(path.suffix.lower(), "")


def check_no_address(path: Path) -> None:
    """Refuse the address of a database where a file is expected, without repeating it: it may have a password."""
    if re.search(r"(?:^|/)[a-z][a-z0-9+]+:/", str(path)):
        raise DataError(
            "a table is named by its file, not by the address of a database: write a file such as visits.toml that "
            "says database, table and order_by"
        )


@dataclass(frozen=True)
class DatabaseTable:
    """A table, view or query of a database; read it with :func:`read_database_table`."""

    where: Path
    """The TOML file that says so, for messages."""
    address: str = field(repr=False)
    """A DuckDB file, or a URI, perhaps with a password."""
    driver: str
    table: str | None
    query: str
    order_by: tuple[tuple[str, bool], ...]
    """Columns, and whether they descend."""

    def names(self) -> list[str]:
        """The names of the columns."""
        try:
            with self._connected() as (names, _):
                found = names(self.query)
        except DataError:
            if self.table is not None:
                self._check_table(self.table)
            raise
        for name, _ in self.order_by:
            if name not in found:
                raise unknown_name("column", name, found, f"{self.where}: order_by: the table")
        return found

    def batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        """Record batches with these columns, in order."""
        with self._connected() as (_, run):
            for batch in run(self._select(wanted)):
                batch.validate(full=True)  # text of a database need not be UTF-8
                if batch.num_rows:
                    yield batch.rename_columns(list(wanted))

    def _select(self, wanted: Sequence[str]) -> str:
        as_text = "format('%s', {})" if self.driver == POSTGRESQL else "COALESCE(CAST({} AS VARCHAR), '')"
        by_bytes = ' COLLATE "C"' if self.driver in (POSTGRESQL, "duckdb") else ""
        keys = [f"{_quoted(name)} AS o{i}" for i, (name, _) in enumerate(self.order_by)]
        cells = [f"{as_text.format(_quoted(name))} AS c{i}" for i, name in enumerate(wanted)]
        order = [f"o{i} {'DESC' if down else 'ASC'} NULLS LAST" for i, (_, down) in enumerate(self.order_by)]
        ties = [f"c{i}{by_bytes}" for i in range(len(wanted))]
        read = f"SELECT {', '.join([*keys, *cells])} FROM ({self.query}\n) AS t"  # the query may end in a comment
        chosen = ", ".join(f"c{i}" for i in range(len(wanted)))
        return f"SELECT {chosen} FROM ({read}) AS t ORDER BY {', '.join([*order, *ties])}"

    def _check_table(self, table: str) -> None:
        """Refuse a table that is not there, with the nearest name; nothing if the database does not say."""
        try:
            with self._connected() as (_, run):
                every = "SELECT table_schema AS s, table_name AS n FROM information_schema.tables"
                found = [(row["s"], row["n"]) for batch in run(every) for row in batch.to_pylist()]
        except DataError:
            return
        own = [(schema, name) for schema, name in found if schema not in ("information_schema", "pg_catalog")]
        if table not in {each for schema, name in own for each in (name, f"{schema}.{name}")}:
            may = "" if self.driver == "duckdb" else ", as far as this user may read it,"
            raise unknown_name("table", table, sorted({name for _, name in own}), f"{self.where}: the database{may}")

    @contextmanager
    def _connected(self) -> Iterator[tuple[Callable[[str], list[str]], Callable[[str], Any]]]:
        """What tells a query's columns, and what runs it; whatever goes wrong meanwhile is one sentence."""
        module = self._module()
        try:
            if self.driver == "duckdb":
                with module.connect(self.address, read_only=True, config=DUCKDB_CONFIG) as connection:

                    def names(query: str) -> list[str]:
                        kinds = [each.type for each in connection.extract_statements(query)]
                        if kinds != [module.StatementType.SELECT]:  # others would be run, a COPY to a file too
                            raise DataError(f"{self.where}: query must be one SELECT")
                        return list(connection.sql(query).columns)

                    yield (
                        names,
                        lambda query: connection.sql(query).to_arrow_reader(BATCH_ROWS),
                    )
                return
            with module.connect(self.address) as connection, connection.cursor() as cursor:

                def run(query: str) -> Any:
                    cursor.execute(query)
                    return cursor.fetch_record_batch()

                for setting in SETTINGS if self.driver == POSTGRESQL else ():
                    cursor.execute(f"SET {setting}")
                yield lambda query: list(run(f"SELECT * FROM ({query}\n) AS t LIMIT 0").schema.names), run
        except (module.Error, pa.ArrowException, OSError) as error:
            raise DataError(f"{self.where}: the database cannot be read: {self._reason(error)}") from None

    def _module(self) -> Any:
        try:
            return import_module("duckdb" if self.driver == "duckdb" else f"{self.driver}.dbapi")
        except ModuleNotFoundError:
            extra = {"duckdb": "'dpadmm[duckdb]'", POSTGRESQL: "'dpadmm[postgresql]'"}.get(self.driver)
            package = extra or self.driver.replace("_", "-")
            raise DataError(f"{self.where}: to read this database: pip install {package}") from None

    def _reason(self, error: Exception) -> str:
        """The first line of the driver's message, unless it repeats any part of a password."""
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        user = re.match(r"[^:]*://(.*)@", self.address)
        parts = re.split("[:@/?#]", user[1])[1:] if user else []
        values = re.findall(r"[?&][^=&]*=([^&]*)", self.address) if _SECRET.search(self.address) else []
        secrets = {form for part in (*parts, *values) for form in (part, unquote(part)) if form}
        if "Could not set lock" in text:
            return "another program has it open for writing: close it there, or read a copy"
        return "its message repeats part of the password" if any(each in text for each in secrets) else text


def read_database_table(path: Path) -> DatabaseTable:
    """The table that a TOML file describes, or one sentence why not."""
    about = read_toml(path)
    check_names(about, ENTRIES, f"{path}, which says where a database's table is")
    for name, value in about.items():
        texts = value if name == "order_by" and isinstance(value, list) and value else [value]
        if not all(isinstance(each, str) and each.strip() for each in texts):
            raise StudyError(
                f"{path}: {name} must be a string{', or a list with one string or more' * (name == 'order_by')}"
            )
        if name != "query" and not all(map(str.isprintable, texts)):
            raise StudyError(f"{path}: {name} must be a string of one line")
    _only_one(about, ("database", "database_env", "database_file"), path)
    _only_one(about, ("table", "query"), path)
    if "order_by" not in about:
        raise StudyError(
            f"{path}: order_by is missing: columns that fix the order of the rows, such as a key; a database promises "
            "no order, while which rows of a person count, and whether these are the rows enrolled, depend on it"
        )
    table, named = about.get("table"), about["order_by"]
    address = _address(about, path)
    return DatabaseTable(
        where=path,
        address=address,
        driver=_driver(address, about, path),
        table=table,
        query=about["query"].strip().rstrip(";") if table is None else f"SELECT * FROM {_quoted(*table.split('.'))}",
        order_by=tuple(_key(each) for each in ([named] if isinstance(named, str) else named)),
    )


def _only_one(about: Mapping[str, Any], names: Sequence[str], path: Path) -> None:
    if len(given := [name for name in names if name in about]) != 1:
        raise StudyError(f"{path}: give one of {', '.join(names)}, not {' and '.join(given) or 'none'}")


def _address(about: Mapping[str, Any], path: Path) -> str:
    """A URI, or the path of a file; those with passwords come from the environment or a private file."""
    if (variable := about.get("database_env")) is not None:
        if not (address := os.environ.get(variable, "").strip()):
            raise DataError(f"{path}: the environment variable {variable!r}, the database's address, is not set")
    elif (name := about.get("database_file")) is not None:
        file = path.parent / expanded(name, f"{path}: database_file")
        try:
            if file.stat().st_mode & 0o077:
                raise DataError(f"{path}: others may read {file}, the database's address: chmod 600 {file}")
            address = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise DataError(f"{path}: {file}, the database's address, cannot be read") from None
    else:
        address = about["database"].strip()
        if _SECRET.search(address):
            raise StudyError(
                f"{path}: database may not hold a password: write the address without it (postgresql://user@host/name) "
                "and put the password into ~/.pgpass, or the whole address into a variable (database_env = "
                '"CLINIC_DB") or a private file (database_file)'
            )
    if not address.isprintable():
        raise DataError(f"{path}: the database's address must be a single line")
    if "://" not in address and re.search(r"\b(?:host|dbname|user)\s*=", address):
        raise DataError(f"{path}: write the database's address as postgresql://user@host/name")
    return address if "://" in address else str(path.parent / expanded(address, f"{path}: database"))


def _driver(address: str, about: Mapping[str, Any], path: Path) -> str:
    named: str | None = about.get("driver")
    if "://" not in address:
        file = Path(address)
        hidden = next((name for name in ("database_env", "database_file") if name in about), None)
        shown = file if hidden is None else f"what {hidden} says"  # perhaps with a password
        try:
            with file.open("rb") as content:
                begin = content.read(12)
        except OSError as error:
            raise DataError(f"{path}: {shown}, the database, cannot be read: {error.strerror}") from None
        if begin[8:] != b"DUCK":
            said = f"; {advice(file)}" if advice(file) else ""
            raise DataError(f"{path}: {shown} is not a DuckDB database{said}")
        return "duckdb"
    if named is None and re.match("postgres(ql)?://", address):
        return POSTGRESQL
    if named is None or not re.fullmatch(r"adbc_driver_\w+", named):
        raise StudyError(
            f"{path}: this kind of database needs driver, the Python package of its ADBC driver, such as "
            'driver = "adbc_driver_flightsql"'
        )
    return named


def _key(written: str) -> tuple[str, bool]:
    found = re.fullmatch(r"(.+?)\s+(asc|desc)", written.strip(), re.IGNORECASE)
    return (found[1], found[2].lower() == "desc") if found else (written.strip(), False)


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
