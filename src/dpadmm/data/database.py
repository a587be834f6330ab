"""Tables in databases, described by a TOML file and read as the database would export them to CSV.

A file such as ``visits.toml`` can be used in place of a table's file::

    database = "postgresql://db.clinic.example/research"   # or a DuckDB file, or database_env, database_file
    table = "visits"                                       # a table or a view; or query = "select ..."
    order_by = "visit_id"                                  # or several, such as ["patient", "visit_date desc"]

*Cells are text*, as in the database's own CSV export, and missing cells are empty. So a cell is converted independently
of other cells, and a table has the same rows and the same digest as its export.

*Rows are ordered* by ``order_by``, because a database guarantees no order. The order decides which rows of a person
count, and the digest by which a site recognises its rows after a restart depends on it. Ties are sorted by the text of
the cells that are read. Rows that are still equal are identical to the study, so their order has no effect.
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
"""Larger sorts use a temporary folder next to the database. DuckDB's default limit is most of the memory."""

SETTINGS = ("client_encoding = 'UTF8'", "datestyle = 'ISO'", "extra_float_digits = 1", "transaction_read_only = on")
"""Settings of PostgreSQL. A user or a database may have other defaults, which would change the text of cells."""

_SECRET = re.compile(r"://[^@/?#]*:.*@|(?:passw|pwd|secret|token)\w*\s*=", re.IGNORECASE)
_STATISTICS = "export the table as CSV or Parquet there, or with pandas"
_FORMAT_HINTS = {
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
        "for a database, write a file such as visits.toml with database, table and order_by",
    ),
}


def format_hint(path: Path) -> str:
    """Return how to convert a file whose format is not supported, or an empty string."""
    return _FORMAT_HINTS.get(path.suffix.lower(), "")


def check_not_an_address(path: Path) -> None:
    """Raise DataError for the address of a database. It is not quoted, because it may have a password."""
    if re.search(r"(?:^|/)[a-z][a-z0-9+]+:/", str(path)):
        raise DataError(
            "a table must be a file, not the address of a database: write a file such as visits.toml with database, "
            "table and order_by"
        )


@dataclass(frozen=True)
class DatabaseTable:
    """A table, view or query of a database; read it with :func:`read_database_table`."""

    file: Path
    """TOML file with the description, for messages."""
    address: str = field(repr=False)
    """A DuckDB file, or a URI, perhaps with a password."""
    driver: str
    table: str | None
    query: str
    order_by: tuple[tuple[str, bool], ...]
    """Columns, and whether their order is descending."""

    def column_names(self) -> list[str]:
        """Return the names of the columns."""
        try:
            with self._connected() as (names, _):
                columns = names(self.query)
        except DataError:
            if self.table is not None:
                self._check_table(self.table)
            raise
        for name, _ in self.order_by:
            if name not in columns:
                raise unknown_name("column", name, columns, f"{self.file}: order_by: the table")
        return columns

    def batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        """Yield record batches with these columns, in order."""
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
        """Raise an error with the most similar name if the table does not exist and the database lists its tables."""
        try:
            with self._connected() as (_, run):
                query = "SELECT table_schema AS s, table_name AS n FROM information_schema.tables"
                tables = [(row["s"], row["n"]) for batch in run(query) for row in batch.to_pylist()]
        except DataError:
            return
        own = [(schema, name) for schema, name in tables if schema not in ("information_schema", "pg_catalog")]
        if table not in {full_name for schema, name in own for full_name in (name, f"{schema}.{name}")}:
            scope = "" if self.driver == "duckdb" else ", as far as this user may read it,"
            raise unknown_name("table", table, sorted({name for _, name in own}), f"{self.file}: the database{scope}")

    @contextmanager
    def _connected(self) -> Iterator[tuple[Callable[[str], list[str]], Callable[[str], Any]]]:
        """Yield two functions: one returns the columns of a query, the other runs it. Errors become a DataError."""
        module = self._module()
        try:
            if self.driver == "duckdb":
                with module.connect(self.address, read_only=True, config=DUCKDB_CONFIG) as connection:

                    def names(query: str) -> list[str]:
                        kinds = [statement.type for statement in connection.extract_statements(query)]
                        if kinds != [module.StatementType.SELECT]:  # others would be executed, even a COPY to a file
                            raise DataError(f"{self.file}: query must be one SELECT")
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
            raise DataError(f"{self.file}: the database cannot be read: {self._reason(error)}") from None

    def _module(self) -> Any:
        try:
            return import_module("duckdb" if self.driver == "duckdb" else f"{self.driver}.dbapi")
        except ModuleNotFoundError:
            extra = {"duckdb": "'dpadmm[duckdb]'", POSTGRESQL: "'dpadmm[postgresql]'"}.get(self.driver)
            package = extra or self.driver.replace("_", "-")
            raise DataError(f"{self.file}: to read this database: pip install {package}") from None

    def _reason(self, error: Exception) -> str:
        """Return the first line of the driver's message, unless it contains part of a password."""
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        user = re.match(r"[^:]*://(.*)@", self.address)
        parts = re.split("[:@/?#]", user[1])[1:] if user else []
        values = re.findall(r"[?&][^=&]*=([^&]*)", self.address) if _SECRET.search(self.address) else []
        secrets = {form for part in (*parts, *values) for form in (part, unquote(part)) if form}
        if "Could not set lock" in text:
            return "another program has it open for writing: close it there, or read a copy"
        return "its message repeats part of the password" if any(secret in text for secret in secrets) else text


def read_database_table(path: Path) -> DatabaseTable:
    """Return the table that a TOML file describes. Raise StudyError or DataError if the description is invalid."""
    entries = read_toml(path)
    check_names(entries, ENTRIES, f"{path}, the description of a database table")
    for name, value in entries.items():
        texts = value if name == "order_by" and isinstance(value, list) and value else [value]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise StudyError(
                f"{path}: {name} must be a string{', or a list with one string or more' * (name == 'order_by')}"
            )
        if name != "query" and not all(map(str.isprintable, texts)):
            raise StudyError(f"{path}: {name} must be a string of one line")
    _check_one_of(entries, ("database", "database_env", "database_file"), path)
    _check_one_of(entries, ("table", "query"), path)
    if "order_by" not in entries:
        raise StudyError(
            f"{path}: order_by is missing: name columns that fix the order of the rows, such as a key; which rows of a "
            "person count depends on the order, and a database guarantees none"
        )
    table, order_by = entries.get("table"), entries["order_by"]
    address = _address(entries, path)
    return DatabaseTable(
        file=path,
        address=address,
        driver=_driver(address, entries, path),
        table=table,
        query=entries["query"].strip().rstrip(";") if table is None else f"SELECT * FROM {_quoted(*table.split('.'))}",
        order_by=tuple(map(_order_key, [order_by] if isinstance(order_by, str) else order_by)),
    )


def _check_one_of(entries: Mapping[str, Any], names: Sequence[str], path: Path) -> None:
    if len(given := [name for name in names if name in entries]) != 1:
        raise StudyError(f"{path}: give one of {', '.join(names)}, not {' and '.join(given) or 'none'}")


def _address(entries: Mapping[str, Any], path: Path) -> str:
    """Return a URI or the path of a file. An address with a password is in the environment or a private file."""
    if (variable := entries.get("database_env")) is not None:
        if not (address := os.environ.get(variable, "").strip()):
            raise DataError(f"{path}: the environment variable {variable!r}, the database's address, is not set")
    elif (name := entries.get("database_file")) is not None:
        file = path.parent / expanded(name, f"{path}: database_file")
        try:
            if file.stat().st_mode & 0o077:
                raise DataError(f"{path}: others may read {file}, the database's address: chmod 600 {file}")
            address = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise DataError(f"{path}: {file}, the database's address, cannot be read") from None
    else:
        address = entries["database"].strip()
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


def _driver(address: str, entries: Mapping[str, Any], path: Path) -> str:
    driver: str | None = entries.get("driver")
    if "://" not in address:
        file = Path(address)
        secret = next((name for name in ("database_env", "database_file") if name in entries), None)
        shown = file if secret is None else f"the file of {secret}"  # the address may have a password
        try:
            with file.open("rb") as content:
                begin = content.read(12)
        except OSError as error:
            raise DataError(f"{path}: {shown}, the database, cannot be read: {error.strerror}") from None
        if begin[8:] != b"DUCK":
            hint = f"; {format_hint(file)}" if format_hint(file) else ""
            raise DataError(f"{path}: {shown} is not a DuckDB database{hint}")
        return "duckdb"
    if driver is None and re.match("postgres(ql)?://", address):
        return POSTGRESQL
    if driver is None or not re.fullmatch(r"adbc_driver_\w+", driver):
        raise StudyError(
            f"{path}: this kind of database needs driver, the Python package of its ADBC driver, such as "
            'driver = "adbc_driver_flightsql"'
        )
    return driver


def _order_key(text: str) -> tuple[str, bool]:
    match = re.fullmatch(r"(.+?)\s+(asc|desc)", text.strip(), re.IGNORECASE)
    return (match[1], match[2].lower() == "desc") if match else (text.strip(), False)


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
