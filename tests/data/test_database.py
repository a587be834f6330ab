"""Rows where they are: databases, folders and Arrow files give what the CSV export gives, or one sentence why not."""

from __future__ import annotations

import logging
import random
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from databases import PASSWORD, PostgreSQL, duckdb_file, postgresql
from looping import case

from dpadmm.data.database import read_database_table
from dpadmm.data.dataset_file import read_table
from dpadmm.data.reader import column_names, line_warnings, open_batches
from dpadmm.errors import DataError, DPADMMError, RefusalError
from dpadmm.federation.site.responder import Responder
from dpadmm.models.evaluate import evaluate
from dpadmm.sites.site import Site, read_site
from dpadmm.studies.drafts import draft_from_table
from dpadmm.studies.reading import read_study
from dpadmm.training.train import prior_from, train

STUDY = """
format = "dpadmm-study/2"
name = "readmission"
[label]
column = "outcome"
classes = ["home", "back"]
[columns]
age = {kind = "number", bounds = [0, 120]}
bmi = {kind = "number", bounds = [10, 60], missing = "indicator"}
dose = {kind = "number", bounds = [0, 10]}
smoker = {kind = "boolean"}
ward = {kind = "category", values = ["A", "B, east", "Ü"]}
admitted = {kind = "category", values = ["2024-01-01", "2024-02-29"]}
[method]
name = "dp_admm"
[training]
n_rounds = 3
[privacy]
epsilon = 0.5
delta = 1e-5
"""
SITE = """
format = "dpadmm-site/2"
ledger = "ledger"
[data]
table = "{table}"
label = "outcome"
[person]
column = "patient"
rows = 2
[limits]
epsilon = 2.0
delta = 1e-5
methods = ["dp_admm"]
losses = ["logistic"]
max_rounds = 10
min_rows = 10
"""
CREATE = """CREATE TABLE visits (visit_id integer, patient varchar(20), age smallint, bmi numeric(6, 3),
    dose double precision, smoker boolean, ward varchar(20), admitted date, outcome varchar(10))"""
VIEW = "CREATE VIEW seen AS SELECT * FROM visits WHERE visit_id >= 0"


def rows() -> list[tuple[str, ...]]:
    """Literals of SQL, in no order; some patients have three visits, some cells are missing."""
    draw = random.Random(1)
    found = [
        (
            str(i),
            f"'p{i // 3 if i % 5 else i}'",
            draw.choice(["NULL", str(draw.randrange(130))]),
            draw.choice(["NULL", f"{draw.uniform(5, 70):.3f}", "20"]),
            draw.choice(["NULL", "1e-7", "1e20", repr(draw.uniform(0, 10)), "0.1", "-0.0"]),
            draw.choice(["NULL", "true", "false"]),
            draw.choice(["NULL", "'A'", "'B, east'", "'Ü'", "' A '", "''", "'say \"C\"'"]),
            draw.choice(["NULL", "DATE '2024-01-01'", "DATE '2024-02-29'"]),
            draw.choice(["'home'", "'back'"]),
        )
        for i in range(90)
    ]
    draw.shuffle(found)
    return found


def inserted() -> str:
    return "INSERT INTO visits VALUES " + ", ".join(f"({', '.join(row)})" for row in rows())


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as found:
        found.run(CREATE, inserted(), VIEW)
        yield found


def written(folder: Path, *lines: str, name: str = "visits.toml") -> Path:
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def exported(folder: Path, *, query: str = "SELECT * FROM visits ORDER BY visit_id") -> Path:
    """The visits in DuckDB, and its own CSV export of them."""
    file, made = folder / "export.csv", folder / "clinic.duckdb"
    duckdb_file(made, CREATE, inserted(), VIEW, f"COPY ({query}) TO '{file}' (FORMAT csv, HEADER)")
    return file


def cells(path: Path) -> dict[str, list[Any]]:
    return pa.Table.from_batches(open_batches(path, column_names(path))).to_pydict()


def site_on(folder: Path, table: str) -> Site:
    (folder / "site.toml").write_text(SITE.format(table=table))
    return read_site(folder / "site.toml")


def enrolled(site: Site, *, create: bool = False) -> str:
    """The digest of the rows that a guard enrolled: it would refuse others than it knows."""
    with site.guard(create=create) as guard:
        return guard.enrol(read_study(site.path.parent / "study.toml")).rows.digest()


def same_as_export(folder: Path, *, csv: str, table: str) -> None:
    """Cells, digest, and the model of a study are those of the export."""
    study = written(folder, STUDY, name="study.toml")
    assert cells(folder / table) == cells(folder / csv)
    digest = enrolled(site_on(folder, csv), create=True)
    site = site_on(folder, table)
    assert enrolled(site) == digest
    assert site.rows.persons().n_above > 0
    one, other = (train(study, folder / each, n_agents=3, seed=5) for each in (csv, table))
    assert one.model.weights.tobytes() == other.model.weights.tobytes()
    assert evaluate(one.model, folder / csv).to_dict() == evaluate(one.model, folder / table).to_dict()
    drafts = [draft_from_table(folder / each, "outcome") for each in (csv, table)]
    assert drafts[0].columns == drafts[1].columns
    assert drafts[0].public_rows is not None
    assert drafts[1].public_rows is None  # which are known by the bytes of a file
    assert "export" in drafts[1].not_public


def test_a_duckdb_view_gives_the_rows_and_the_model_of_its_csv_export(tmp_path: Path) -> None:
    csv = exported(tmp_path)
    written(tmp_path, 'database = "clinic.duckdb"', 'table = "seen"', 'order_by = "visit_id"')
    same_as_export(tmp_path, csv=csv.name, table="visits.toml")
    duckdb_file(tmp_path / "clinic.duckdb", "UPDATE visits SET age = 7 WHERE visit_id = 7")
    with pytest.raises(RefusalError) as refused:
        enrolled(site_on(tmp_path, "visits.toml"))
    assert refused.value.code == "data-changed"


def test_a_postgresql_table_gives_the_rows_and_the_model_of_its_csv_export(
    server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = written(tmp_path, f"127.0.0.1:{server.port}:*:*:{PASSWORD}", name="pgpass")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    (tmp_path / "export.csv").write_bytes(server.export("SELECT * FROM visits ORDER BY visit_id"))
    written(tmp_path, f'database = "{server.address}"', 'table = "public.visits"', 'order_by = "visit_id"')
    server.run("ALTER ROLE clinic SET datestyle = 'German'", "ALTER ROLE clinic SET extra_float_digits = 0")
    try:
        same_as_export(tmp_path, csv="export.csv", table="visits.toml")
    finally:
        server.run("ALTER ROLE clinic RESET ALL")
    server.run("UPDATE visits SET ward = 'B, east' WHERE visit_id = 3")  # which moves the row within the table
    try:
        with pytest.raises(RefusalError) as refused:
            enrolled(site_on(tmp_path, "visits.toml"))
        assert refused.value.code == "data-changed"
    finally:
        server.run("TRUNCATE visits", inserted())
    digest = enrolled(site_on(tmp_path, "visits.toml"))
    exported(tmp_path)
    written(tmp_path, 'database = "clinic.duckdb"', 'table = "visits"', 'order_by = "visit_id"')
    assert enrolled(site_on(tmp_path, "visits.toml")) == digest
    kept = [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file() and each != passwords]
    assert not any(PASSWORD.encode() in each for each in kept)


KINDS = {
    "b": ("boolean", "true", "false"),
    "i": ("bigint", "9007199254740993", "-1"),
    "r": ("real", "0.1", "'NaN'", "3e38"),
    "d": ("double precision", "0.1", "1e-7", "'-Infinity'", "123456789012345680", "-0.0"),
    "n": ("numeric", "1.50", "1.5", "12345678901234567890.123", "'NaN'", "0.000"),
    "t": ("text", "''", "' a '", "'NA'", "E'two\\nlines'", "'\"quoted\", Ü'", "'\\N'"),
    "c": ("char(4)", "'ab'"),
    "day": ("date", "'2024-02-29'", "'infinity'", "'0044-03-15 BC'"),
    "at": ("timestamptz", "'2024-02-29 12:00:00.5+02'"),
    "while": ("interval", "'1 year 2 days'"),
    "u": ("uuid", "'36053eaa-1097-4884-92b2-0df0b5349b5f'"),
    "j": ("json", "'{\"a\": 1}'"),
    "list": ("integer[]", "'{1,2}'"),
    "bytes": ("bytea", "'\\xdead'"),
    "net": ("inet", "'10.0.0.1'"),
    'say "x"': ("text", "'odd name'"),
}


def test_every_kind_of_postgresql_cell_is_the_text_of_the_export(
    server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLINIC_DB", server.secret_address)
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in KINDS}
    longest = max(map(len, KINDS.values()))
    lines = [
        ", ".join([str(i), *((*kind[1:], *["NULL"] * longest)[i] for kind in KINDS.values())]) for i in range(longest)
    ]
    server.run(
        f"CREATE TABLE kinds (k integer, {', '.join(f'{quoted[name]} {kind[0]}' for name, kind in KINDS.items())})",
        *(f"INSERT INTO kinds VALUES ({line})" for line in lines),
    )
    (tmp_path / "kinds.csv").write_bytes(server.export("SELECT * FROM kinds ORDER BY k DESC"))
    table = written(tmp_path, 'database_env = "CLINIC_DB"', 'table = "kinds"', 'order_by = ["k desc"]')
    found = cells(table)
    assert found == cells(tmp_path / "kinds.csv")
    assert found["b"][-2:] == ["f", "t"]
    assert found["k"] == [str(i) for i in reversed(range(longest))]


def test_rows_that_order_by_leaves_equal_come_in_one_order(tmp_path: Path) -> None:
    """Whatever the order in which they were written: they are sorted by what is read of them."""
    lines, found = rows(), []
    for turn in range(3):
        random.Random(turn).shuffle(lines)
        values = ", ".join(f"({', '.join(row)})" for row in lines)
        duckdb_file(tmp_path / f"{turn}.duckdb", CREATE, f"INSERT INTO visits VALUES {values}")
        table = written(tmp_path, f'database = "{turn}.duckdb"', 'table = "visits"', 'order_by = "outcome desc"')
        wanted = ["outcome", "ward", "bmi"]
        found.append([each for batch in open_batches(table, wanted) for each in batch.to_pylist()])
    assert found[0] == found[1] == found[2]
    assert [each["outcome"] for each in found[0]] == sorted((each["outcome"] for each in found[0]), reverse=True)
    assert found[0] == sorted(found[0], key=lambda each: (each["outcome"] != "home", each["ward"], each["bmi"]))


def test_which_rows_of_a_person_count_follows_order_by(tmp_path: Path) -> None:
    exported(tmp_path)
    written(tmp_path, STUDY, name="study.toml")
    digests = set()
    for order in ("visit_id", "visit_id desc"):
        written(tmp_path, 'database = "clinic.duckdb"', 'table = "visits"', f'order_by = "{order}"')
        silent = site_on(tmp_path, "visits.toml").rows.persons().silent
        owners = [each.as_py() for batch in open_batches(tmp_path / "visits.toml", ["patient"]) for each in batch[0]]
        before = [owners[:row].count(owner) for row, owner in enumerate(owners)]
        assert silent.tolist() == [count >= 2 for count in before]
        digests.add(tuple(owner for owner, each in zip(owners, silent, strict=True) if each))
    assert len(digests) == 2


def test_another_adbc_driver_is_used_by_its_name(tmp_path: Path) -> None:
    csv = exported(tmp_path)
    address = f'database = "file://{tmp_path / "clinic.duckdb"}"'
    table = written(tmp_path, address, 'driver = "adbc_driver_duckdb"', 'table = "visits"', 'order_by = "visit_id"')
    assert cells(table) == cells(csv)


def told_to_aggregator(site: Site) -> bytes | None:
    """What a site's process answers for a study that its owner accepted."""
    study, responder = read_study(site.path.parent / "study.toml"), Responder(site.guard, 2, logging.getLogger("agent"))
    responder.open()
    try:
        responder.accept(study)
        return responder.answer(study.hash, b"a message")
    finally:
        responder.close()


def test_a_server_that_fails_is_told_to_the_owner_and_to_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with postgresql() as server:
        server.run(CREATE, inserted(), "CREATE SEQUENCE n", f"CREATE ROLE stranger LOGIN PASSWORD '{PASSWORD}'")
        written(tmp_path, STUDY, name="study.toml")
        monkeypatch.setenv("STRANGER", server.secret_address.replace("//clinic:", "//stranger:"))
        monkeypatch.setenv("KEYWORDS", f"host=127.0.0.1 user=clinic password={PASSWORD} dbname=postgres")
        secret = written(tmp_path, server.secret_address + "\n", name="address")
        secret.chmod(0o600)
        wrong = server.secret_address.replace(PASSWORD, "wr@ng")
        monkeypatch.setenv("WRONG", wrong.replace("@ng", "%40ng"))
        monkeypatch.setenv("MISWRITTEN", wrong)
        order, said, hidden = 'order_by = "visit_id"', set(), (PASSWORD, "wr@ng", "wr%40ng", "ng@127")
        faults = [
            (['database_env = "WRONG"', 'table = "visits"'], "password authentication failed"),
            (['database_env = "MISWRITTEN"', 'table = "visits"'], "its message repeats part of the password"),
            (['database_file = "address"', 'table = "visit"'], "has no table 'visit': did you mean 'visits'?"),
            (
                ['database_env = "STRANGER"', 'table = "visits"'],
                "as far as this user may read it, has no table",
            ),
            (
                ['database_env = "KEYWORDS"', 'table = "visits"'],
                "write the database's address as postgresql://",
            ),
            (['database_file = "address"', 'query = "select *, 1 as age from visits"'], "'age' occurs more than once"),
            (['database_file = "address"', 'query = "select * from visits where false"'], "has no rows"),
            (['database_file = "address"', 'query = "select *, 1 / (visit_id - 3) as x from visits"'], None),
            (['database_file = "address"', 'query = "select * frm visits"'], "syntax error"),
            (['database_file = "address"', "query = \"select * from visits where nextval('n') > 0\""], "read-only"),
            ([f'database = "{server.address.replace("127.0.0.1", "127.0.0.2")}"', 'table = "visits"'], "refused"),
        ]
        for lines, sentence in faults:
            with case(lines):
                site = site_on(tmp_path, written(tmp_path, *lines, order).name)
                if sentence is None:  # a column that the study does not read cannot stop it
                    enrolled(site, create=True)
                    continue
                with pytest.raises(RefusalError) as refused:
                    enrolled(site, create=True)
                said.add((refused.value.wire(), str(refused.value), told_to_aggregator(site)))
                told = str(refused.value.__cause__)
                assert sentence in told
                assert "\n" not in told
                assert not any(each in told for each in hidden)
        assert len(said) == 1
        assert said.pop()[0] == "study-unfit"
        assert "enrolment refused (study-unfit)" in caplog.text
        assert not any(each in caplog.text for each in (*hidden, "127.0.0", "clinic", "visits"))
        long = "query = \"select g as visit_id, repeat('x', 100) as text from generate_series(1, 1000000) as g\""
        batches = open_batches(written(tmp_path, 'database_file = "address"', long, order), ["text"])
        assert next(batches).num_rows
        server.kill()
        with pytest.raises(DataError, match=r"visits\.toml: the database cannot be read"):
            list(batches)
        with pytest.raises(DataError, match="Connection refused"):
            column_names(tmp_path / "visits.toml")


DATABASE = 'database = "clinic.duckdb"'
REFUSED = [
    ((DATABASE, 'table = "visits"'), "order_by is missing"),
    ((DATABASE, 'table = "visits"', 'order_by = "visit"'), "no column 'visit': did you mean 'visit_id'?"),
    ((DATABASE, 'table = "visit"', 'order_by = "visit"'), "no table 'visit': did you mean 'visits'?"),
    ((DATABASE, 'order_by = "x"'), "give one of table, query, not none"),
    ((DATABASE, 'table = "visits"', 'query = "x"', 'order_by = "x"'), "not table and query"),
    (('table = "visits"', 'order_by = "x"'), "give one of database, database_env, database_file, not none"),
    ((DATABASE, 'tabel = "visits"', 'order_by = "x"'), "unknown setting 'tabel'; did you mean 'table'?"),
    ((DATABASE, "table = 3", 'order_by = "x"'), "table must be a string"),
    ((DATABASE, 'table = "a\\nb"', 'order_by = "x"'), "table must be a string of one line"),
    ((DATABASE, 'table = "visits"', "order_by = []"), "order_by must be a string, or a list with one string"),
    ((DATABASE, 'query = "select 1 as a, 2 as a"', 'order_by = "a"'), "column 'a' occurs more than once"),
    ((DATABASE, 'query = "select 1 as a where false"', 'order_by = "a"'), "has no rows"),
    ((DATABASE, 'query = "drop table visits"', 'order_by = "a"'), "query must be one SELECT"),
    ((DATABASE, "query = \"copy visits to 'leak.csv'\"", 'order_by = "Count"'), "query must be one SELECT"),
    ((DATABASE, 'query = "select 1 as a; select 2 as a"', 'order_by = "a"'), "query must be one SELECT"),
    (('database = "none.duckdb"', 'table = "visits"', 'order_by = "x"'), "none.duckdb.*cannot be read: No such file"),
    (('database = "c.sqlite"', 'table = "visits"', 'order_by = "x"'), "not a DuckDB database; SQLite.*export"),
    (('database_env = "NOT_SET"', 'table = "visits"', 'order_by = "x"'), "variable 'NOT_SET'.* is not set"),
    (
        ('database_env = "NO_URI"', 'table = "visits"', 'order_by = "x"'),
        "write the database's address as postgresql://user@host/name",
    ),
    (('database_file = "none"', 'table = "visits"', 'order_by = "x"'), "none.*cannot be read"),
    (('database_file = "open"', 'table = "visits"', 'order_by = "x"'), "others may read .*: chmod 600"),
    (('database = "mysql://db/x"', 'table = "visits"', 'order_by = "x"'), "needs driver"),
    (('database = "x://db/x"', 'driver = "os"', 'table = "visits"', 'order_by = "x"'), "needs driver"),
    (
        ('database = "x://db/x"', 'driver = "adbc_driver_x"', 'table = "t"', 'order_by = "x"'),
        "pip install adbc-driver-x",
    ),
    *(
        ((f'database = "{address}"', 'table = "visits"', 'order_by = "x"'), "may not hold a password")
        for address in (
            "postgresql://a:hidden@db/x",
            "postgresql://a:hid/den@db/x",
            "postgresql://db/x?password=hidden",
            "postgresql://db/x?user=a&sslpassword=hidden",
            "host=db password=hidden",
        )
    ),
]


def test_a_file_that_describes_no_table_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path)
    monkeypatch.setenv("NO_URI", "host=db password=hidden")
    (tmp_path / "c.sqlite").write_bytes(b"SQLite format 3\0")
    written(tmp_path, "postgresql://db/x", name="open").chmod(0o644)
    for lines, sentence in REFUSED:
        with case(lines):
            table = written(tmp_path, *lines)
            with pytest.raises(DPADMMError, match=sentence) as refused:
                read_table(table, task="binary", label="a")
            assert "\n" not in str(refused.value)
            assert "hid" not in str(refused.value)
    assert not Path("leak.csv").exists()
    (tmp_path / "open").chmod(stat.S_IRUSR)
    found = read_database_table(written(tmp_path, 'database_file = "open"', 'table = "v"', 'order_by = "x"'))
    assert "postgresql://db/x" not in repr(found)


def test_a_missing_driver_is_named_by_the_extra_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(tmp_path)
    for module, database in (("duckdb", "clinic.duckdb"), ("adbc_driver_postgresql.dbapi", "postgresql://db/x")):
        monkeypatch.setitem(sys.modules, module, None)
        table = written(tmp_path, f'database = "{database}"', 'table = "visits"', 'order_by = "visit_id"')
        extra = "postgresql" if "postgresql" in module else "duckdb"
        with pytest.raises(DataError, match=rf"pip install 'dpadmm\[{extra}\]'"):
            column_names(table)


def test_files_that_are_no_tables_here_come_with_advice(tmp_path: Path) -> None:
    for name, sentence in [
        ("t.xlsx", "cannot be read as XLSX"),
        ("t.svm", "save features and labels as .npz"),
        ("t.sqlite", "export the table as CSV"),
        ("t.db", "export the table as CSV"),
        ("t.sav", "export the table as CSV or Parquet"),
        ("t.dta", "export the table as CSV or Parquet"),
        ("t.sas7bdat", "export the table as CSV or Parquet"),
        ("t.duckdb", "write a file such as visits.toml with database, table and order_by"),
        ("postgresql://a:hidden@db/x", "write a file such as visits.toml"),
    ]:
        with case(name):
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_bytes(b"x")
            for read in (column_names, lambda path: read_table(path, task="binary", label="y")):
                with pytest.raises(DataError, match=sentence) as refused:
                    read(tmp_path / name)
                assert "hidden" not in str(refused.value)


TABLE = pa.table({"age": [62.5, 87.5, None, 3.0], "sex": ["f", "m", "m", None], "y": ["yes", "no", "no", "yes"]})


def test_a_folder_of_files_is_one_table_in_the_order_of_their_names(tmp_path: Path) -> None:
    pieces = {"part-10": TABLE[2:3], "part-2": TABLE[3:], "part-0": TABLE[:2].select(["y", "age", "sex"])}
    whole = {name: column[:2] + column[2:3] + column[3:] for name, column in TABLE.to_pydict().items()}
    for ending, write in [
        ("csv", pa.csv.write_csv),
        ("parquet", pq.write_table),
        ("feather", pa.feather.write_feather),
    ]:
        folder = tmp_path / f"visits.{ending}"  # Spark gives folders such names
        folder.mkdir()
        for name, piece in pieces.items():
            write(piece, folder / f"{name}.{ending}")
        (folder / "_SUCCESS").touch()
        (folder / ".crc").touch()
        with case(ending):
            found = pa.Table.from_batches(open_batches(folder, ["age", "y"], numbers=frozenset({"age"}))).to_pydict()
            assert found == {"age": whole["age"], "y": whole["y"]}
            assert line_warnings(folder, 4) == []
            (folder / f"part-3.{ending}").mkdir()
            with pytest.raises(DataError, match=r"'part-3.* is no part of a table"):
                column_names(folder)
            (folder / f"part-3.{ending}").rmdir()
            write(TABLE.rename_columns(["age", "sex", "z"]), folder / f"part-3.{ending}")
            with pytest.raises(DataError, match=r"part-3.* has other columns than part-0"):
                column_names(folder)
            if ending != "csv":
                write(TABLE.set_column(0, "age", pa.array([1, 2, 3, 4])), folder / f"part-3.{ending}")
                with pytest.raises(DataError, match=r"part-3.*'age' holds int64 values, and double in part-0"):
                    column_names(folder)
            (folder / f"part-3.{ending}").unlink()
            (folder / "part-3.tsv").write_text("age\tsex\ty\n")
            with pytest.raises(DataError, match="are of two kinds"):
                column_names(folder)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="without files"):
        column_names(tmp_path / "none")


def test_arrow_files_are_read_column_by_column_in_small_batches(tmp_path: Path) -> None:
    coded = TABLE.set_column(1, "sex", TABLE["sex"].dictionary_encode())
    many = pa.concat_tables([coded] * 10_000)
    with pa.ipc.new_stream(tmp_path / "s.arrow", TABLE.schema) as writer:  # which may lack its end unnoticed
        writer.write_table(TABLE)
    with pytest.raises(DataError, match="not in Arrow's file form"):
        column_names(tmp_path / "s.arrow")
    for name, table in (("t.arrow", many), ("t.feather", many.combine_chunks()), ("T.ARROW", TABLE)):
        path = tmp_path / name
        with case(name):
            if name == "t.feather":
                pa.feather.write_feather(table, path, compression="zstd", chunksize=10**6)
            else:
                with pa.ipc.new_file(path, table.schema) as writer:
                    writer.write_table(table)
            batches = list(open_batches(path, ["y", "sex"]))
            assert batches[0].schema.names == ["y", "sex"]
            assert max(batch.num_rows for batch in batches) <= 2**14
            assert pa.Table.from_batches(batches)["y"].to_pylist() == table["y"].to_pylist()
            content = path.read_bytes()
            for broken in (content[:-30], content[: len(content) // 2], b"ARROW1" + content[20:], b"x"):
                path.write_bytes(broken)
                with pytest.raises(DPADMMError, match="cannot be read as") as refused:
                    list(open_batches(path, ["y", "sex"]))
                assert "\n" not in str(refused.value)


def test_a_column_without_any_cell_does_not_stop_a_draft(tmp_path: Path) -> None:
    for write, name in ((pq.write_table, "t.parquet"), (pa.feather.write_feather, "t.feather")):
        write(TABLE.append_column("nothing", pa.nulls(4)), tmp_path / name)
        assert {each.name: each.about is None for each in draft_from_table(tmp_path / name, "y").columns}["nothing"]


def test_rows_that_are_trained_on_are_not_their_own_public_rows(tmp_path: Path) -> None:
    csv = exported(tmp_path)
    study = read_study(written(tmp_path, STUDY.replace("dp_admm", "auto"), name="study.toml"))
    (tmp_path / "all").mkdir()
    csv.rename(tmp_path / "all" / "part.csv")
    table = written(tmp_path, DATABASE, 'table = "visits"', 'order_by = "visit_id"')
    for each in (tmp_path / "all", table):
        with pytest.raises(DataError, match="is also the public table"):
            prior_from(study, each, private=str(each))
