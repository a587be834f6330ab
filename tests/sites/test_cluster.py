"""A site whose rows are on a Dask cluster: the same answers, with the same privacy."""

from __future__ import annotations

import itertools
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import prove
from clusters import CELLS, PARTS, STUDY, InProcessClient, site_in, three_files, uploads
from guards import memory_folder
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from looping import case
from neighbours import allowed_steps, steps_between
from person_tables import Neighbours, PersonTable, neighbours, person_study
from statistic_cases import all_statistics, parameters_for

from dpadmm.audit import trials
from dpadmm.audit.run import AuditPlan, run_audit
from dpadmm.data.encoder import Report
from dpadmm.data.table import EncodedTable
from dpadmm.errors import DataError, StudyError
from dpadmm.sites import cluster as on_cluster
from dpadmm.sites.cluster import persons_of
from dpadmm.sites.site import read_site
from dpadmm.sites.table import SiteRows
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice, quantise
from dpadmm.trusted.ledger import LedgerState
from dpadmm.trusted.private_rows import CheckedRows, PartitionedRows, PartSummary, protect, silence
from dpadmm.trusted.unit import ONE_ROW, Ids, PrivacyUnit


def test_warnings_are_those_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    whole = site_in(tmp_path / "one", [PersonTable(tuple(CELLS), "csv", "text")], scheduler=None).rows
    parts = three_files(tmp_path / "three", "nowhere").rows
    told, found = whole.survey(STUDY), parts.survey(STUDY)
    assert told is not None
    rows = ("in row 31;", f"in row {31 - PARTS[2][0]};")  # of the table, and of its last file
    assert found == replace(told, problems=[f"part-002.csv: {each.replace(*rows)}" for each in told.problems])
    assert parts.warnings(STUDY) == whole.warnings(STUDY) != []
    for found in (parts.persons(), parts._reports[STUDY.hash][1]):
        for name, value in vars(whole.persons()).items():
            np.testing.assert_array_equal(getattr(found, name), value)
    assert parts._reports[STUDY.hash][0] == whole._reports[STUDY.hash][0]
    unnamed = site_in(tmp_path / "many", [PersonTable(tuple(CELLS), "csv", "text")] * 2, scheduler="x", by=False)
    assert (unnamed.rows.persons().n_rows, unnamed.rows.persons().n_persons) == (80, None)
    assert unnamed.open_rows(STUDY).n_rows == 80


def test_an_answer_is_the_sum_over_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    one = site_in(tmp_path / "one", [PersonTable(tuple(CELLS), "csv", "text")], scheduler=None)
    whole, site = one.rows.encoded(STUDY), three_files(tmp_path / "three", "nowhere")
    held = [CheckedRows(replace(whole, features=whole.features[a:b], labels=whole.labels[a:b])) for a, b in PARTS]
    rows = site.open_rows(STUDY)
    assert (rows.n_features, rows.n_rows, rows.n_parts) == (held[0].n_features, len(CELLS), len(PARTS))
    for statistic in all_statistics(STUDY.problem.loss, STUDY.shape[0]):
        grid = Lattice(statistic.row_norm, int(np.prod(statistic.shape)), len(CELLS), len(PARTS))
        for asked in parameters_for(statistic):
            expected = sum(part.total(statistic, asked, grid) for part in held)
            np.testing.assert_array_equal(rows.total(statistic, asked, grid), expected)
    parts = [PartSummary(part.n_rows, part.n_features, part.digest()) for part in held]
    assert rows.digest() == PartitionedRows(parts, rows.unit, lambda *_: ()).digest()
    assert len(set(uploads(site))) == 3
    asked_for = site.dry_run(STUDY, LedgerState()).query_at(1)
    assert (asked_for.grid.n_rows, asked_for.grid.n_parts) == (len(CELLS), len(PARTS))
    assert CheckedRows(whole).n_parts == 1
    plain = person_study("logistic", "plain", intercept=False)
    assert site.open_rows(plain).n_features == 2
    assert site.rows.survey(plain) is not None
    for error, told in ((DataError("why"), "no sum: why"), (KeyError("a cell"), "no sum: KeyError\n")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(on_cluster, "total", fail)
        caplog.clear()
        with pytest.raises(type(error)):
            rows.total(statistic, asked, grid)
        assert told in caplog.text


def test_parts_of_a_table_have_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as in one file, in sums and in the digest of the table."""
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    study = person_study("logistic", weighted=True)
    cells = [(*row[:6], f"{i % 6}" if i != 20 else "-1", row[-1]) for i, row in enumerate(CELLS)]
    tables = [PersonTable(tuple(cells[a:b]), "csv", "text") for a, b in PARTS]
    whole = site_in(tmp_path / "one", [PersonTable(tuple(cells), "csv", "text")], scheduler=None).rows.encoded(study)
    rows = site_in(tmp_path / "three", tables, scheduler="nowhere").open_rows(study)
    given = whole.row_weights
    assert given is not None
    assert len(set(given.tolist())) > 5
    held = []
    for a, b in PARTS:
        mine = {"features": whole.features[a:b], "labels": whole.labels[a:b], "row_weights": given[a:b]}
        held.append(CheckedRows(replace(whole, **mine)))
    for statistic in all_statistics(study.problem.loss, study.shape[0]):
        grid = Lattice(statistic.row_norm, int(np.prod(statistic.shape)), len(cells), len(PARTS))
        for asked in parameters_for(statistic):
            expected = sum(part.total(statistic, asked, grid) for part in held)
            np.testing.assert_array_equal(rows.total(statistic, asked, grid), expected)
    parts = [PartSummary(part.n_rows, part.n_features, part.digest()) for part in held]
    assert rows.digest() == PartitionedRows(parts, rows.unit, lambda *_: ()).digest()


def test_a_part_that_is_read_again_must_be_unchanged() -> None:
    features, labels = np.eye(3), np.array([1.0, -1.0, 1.0])
    persons, report = ONE_ROW.persons(None, 3), Report(rows=3)
    table = EncodedTable(features, labels, None, (), report)
    part = on_cluster.hold(table, ONE_ROW, persons, on_cluster.digest_of(3, None))
    statistic = all_statistics(STUDY.problem.loss, 3)[0]
    asked, grid = parameters_for(statistic)[0], Lattice(statistic.row_norm, int(np.prod(statistic.shape)), 3)
    assert on_cluster.total(part, part.summary.digest, statistic, asked, grid).dtype == np.int64
    with pytest.raises(DataError, match="is not what it was when the study was enrolled"):
        on_cluster.total(part, "0" * 64, statistic, asked, grid)
    assert sys.getsizeof(part) >= features.nbytes
    with pytest.raises(DataError, match="persons of 2 rows are given, but there are 3 rows"):
        silence(features, labels, ONE_ROW, ONE_ROW.persons(None, 2), owned=False)
    unit, ids = PrivacyUnit(1, "who"), Ids.of(["a", "b", "a"])
    for now, fine in ((["a", "b", "a"], True), (["a", "b", "b"], False), (["a", "b", "c"], False)):
        again = Ids.of(now)
        read = EncodedTable(features, labels, again.codes, tuple(again.spellings), report)
        with case(now), nullcontext() if fine else pytest.raises(DataError, match="was changed while it was read"):
            on_cluster.hold(read, unit, unit.persons(ids, 3), on_cluster.digest_of(3, ids))


def test_an_id_is_the_same_person_in_a_file_where_numbers_are_written_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing id turns whole numbers into floats, which Arrow writes with an exponent from 1e10 on."""
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    folder = tmp_path / "rows"
    folder.mkdir()
    numbers = [4000000000000001, 4000000000000002]
    for name, ids in (("a", pa.array(numbers)), ("b", pa.array([*map(float, numbers), None]))):
        pq.write_table(pa.table({"id": ids, "age": range(len(ids))}), folder / f"{name}.parquet")
    with pytest.raises(DataError, match=r"column 'id' holds double values, and int64 in a\.parquet"):
        on_cluster.files_of(folder)
    unit, parts = PrivacyUnit(1, "id"), []
    for name in ("a", "b"):
        rows = SiteRows(tmp_path / "site.toml", folder / f"{name}.parquet", None, unit)
        parts.append(on_cluster._ids_in(rows))
    assert persons_of(unit, parts).silent.all(), "written in two ways, whoever it is"


def test_counts_and_problems_cover_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    reports = [Report(rows=2, clipped=3), Report(rows=5, clipped=4)]
    assert on_cluster.merged(reports) == Report(rows=7, clipped=7)
    assert on_cluster.merged(reports[:1]) == reports[0]
    loud = PersonTable(tuple((*row[:-1], "YES") for row in CELLS[:5]), "csv", "text")
    open_quote = PersonTable((*CELLS[:3], (*CELLS[3][:-2], "a\n" * 9, "YES")), "csv", "text")
    rows = site_in(tmp_path / "a", [loud, open_quote], scheduler="nowhere").rows
    told = rows.survey(STUDY)
    assert told is not None
    assert (told.other_case, len(told.line_warnings)) == (6, 1)
    assert [each[:13] for each in told.problems] == ["part-000.csv:", "part-001.csv:"]
    assert rows.line_warnings(0) == told.line_warnings
    assert rows.survey(replace(STUDY, name="again")) == told


def test_the_label_has_to_be_in_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    for by in (True, False):
        site = site_in(tmp_path / f"{by}", [PersonTable(tuple(CELLS), "csv", "text")] * 2, scheduler="nowhere", by=by)
        assert site.rows.persons().n_rows == 80
        assert replace(site, label=None).rows.persons().n_rows == 80
        with pytest.raises(StudyError, match="gone"):
            replace(site, label="gone").rows.persons()


def test_invalid_parts_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cluster, "Cluster", InProcessClient)
    rows = three_files(tmp_path / "a", "nowhere").rows
    folder, first = tmp_path / "a" / "rows", (tmp_path / "a" / "rows" / "part-000.csv").read_text().splitlines()
    (folder / "_SUCCESS").touch()
    (folder / ".part-000.csv.crc").touch()
    assert len(on_cluster.files_of(folder)) == 3
    shutil.copy(folder / "part-002.csv", folder / "X.csv")
    assert next(file.name for file in on_cluster.files_of(folder)) == "X.csv"
    (folder / "X.csv").unlink()
    for name, text, said in (
        ("notes.txt", "", "notes.txt. in it is no part of a table"),
        ("part-003.csv", "\n".join(first[:2]), "part-003.csv has fewer than two rows; every file"),
        ("part-003.csv", first[0], "part-003.csv has no rows"),
        ("part-003.csv", "\n".join(["id,age", "1,2", "3,4"]), "part-003.csv has other columns than part-000.csv"),
    ):
        with case(name, text):
            (folder / name).write_text(text + "\n")
            fresh = read_site(rows.path).rows
            with pytest.raises(DataError, match=said):
                fresh.opened(STUDY)
            (folder / name).unlink()
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="must be a folder that the cluster's workers can read"):
        read_site(rows.path).rows.persons()
    folder.mkdir()
    with pytest.raises(DataError, match="is a directory without files"):
        read_site(rows.path).rows.persons()


# What parts do to the guarantee


@settings(prove, max_examples=24, phases=set(Phase) - {Phase.explain})
@given(neighbours(), st.data())
def test_a_person_with_rows_in_several_parts_moves_a_sum_by_at_most_what_is_charged_for(
    pair: Neighbours, data: st.DataObject
) -> None:
    n = len(pair.one.rows)
    if pair.one.form == "npz" or n < 4:
        return
    cuts = sorted(data.draw(st.sets(st.integers(1, n // 2 - 1), max_size=5)))
    ends = [0, *(2 * cut for cut in cuts), n]
    sides = []
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_cluster, "Cluster", InProcessClient)
        for name, table in (("a", pair.one), ("b", pair.other)):
            parts = [PersonTable(table.rows[a:b], table.form, table.ids) for a, b in itertools.pairwise(ends)]
            by = "column" in pair.person
            site = site_in(folder / name, parts, scheduler="nowhere", k=pair.k, by=by)
            sides.append(site.open_rows(pair.study))
    one, other = sides
    assert (one.n_rows, one.n_features, one.n_parts) == (other.n_rows, other.n_features, other.n_parts)
    assert (one.n_rows, one.n_parts) == (n, len(ends) - 1)
    for statistic in all_statistics(pair.study.problem.loss, pair.study.shape[0]):
        grid = Lattice(statistic.row_norm, int(np.prod(statistic.shape)), n, one.n_parts)
        for asked in parameters_for(statistic):
            assert steps_between(*(side.total(statistic, asked, grid) for side in sides)) <= allowed_steps(grid, pair.k)


def test_a_person_in_two_parts_is_rounded_twice() -> None:
    """P's other spelling silences R, and Q silences no one: the rows of R and Q are in different parts."""
    together, apart = Lattice(1.0 + 2.0**-21, 1, 4), Lattice(1.0 + 2.0**-21, 1, 4, n_parts=2)
    before = np.array([0.3 * apart.step])
    after = before + apart.row_bound
    moved = 2 * int((quantise(after, apart) - quantise(before, apart))[0])
    assert together.sensitivity / together.step < moved <= apart.sensitivity / apart.step
    assert Lattice(1.0, 9, 50, n_parts=1000).sensitivity == Lattice(1.0, 9, 50, n_parts=2).sensitivity
    assert apart.noise_scale(1.0) > together.noise_scale(1.0)
    assert apart.max_sum == together.max_sum + 1


def test_persons_are_those_of_the_table_as_a_whole() -> None:
    unit, ids = PrivacyUnit(2, "who"), ["a", "b", "a", "A", "c", "c", "", "c", "b", "b"]
    parts = [ids[:3], ids[3:7], ids[7:]]
    found = persons_of(unit, [(len(part), Ids.of(part)) for part in parts])
    for name, value in vars(unit.persons(Ids.of(ids), len(ids))).items():
        np.testing.assert_array_equal(getattr(found, name), value)


def test_the_digest_covers_every_part_and_no_sum_may_be_missing() -> None:
    a, b, c = (PartSummary(5, 3, f"{i:064d}") for i in range(3))

    def rows(*parts: PartSummary, totals: Any = ()) -> PartitionedRows:
        return PartitionedRows(parts, ONE_ROW, lambda *_: totals)

    digests = {rows(*parts).digest() for parts in ((a, b), (b, a), (a, c), (a, b, c), (a,), (a, b, b))}
    assert len(digests) == 6
    assert (rows(a, b, c).n_rows, rows(a, b).n_parts) == (15, 2)
    assert (rows(a).n_features, rows(a).unit) == (3, ONE_ROW)
    grid, one = Lattice(1.0, 2, 10, 2), np.array([1, 2])
    assert rows(a, b, totals=[one, 3 * one]).total(None, None, grid).tolist() == [4, 8]  # type: ignore[arg-type]
    for totals in ([one], [one] * 3):
        with pytest.raises(DataError, match="got sums from"):
            rows(a, b, totals=totals).total(None, None, grid)  # type: ignore[arg-type]
    for parts in ((), (a, a._replace(n_features=4))):
        with pytest.raises(DataError, match="same columns"):
            rows(*parts)


def test_the_audit_passes_parts_and_detects_a_missing_one() -> None:
    def halves(lost: bool) -> Any:
        def opened(site: Any, study: Study) -> PartitionedRows:
            features, labels = site.rows[site.world]
            sides = [slice(0, len(labels) // 2), slice(len(labels) // 2, None)]
            held = [CheckedRows(protect(features[each], labels[each], ONE_ROW)) for each in sides]
            parts = [PartSummary(each.n_rows, each.n_features, each.digest()) for each in held]
            summed = held[1:] * 2 if lost else held
            return PartitionedRows(parts, ONE_ROW, lambda *asked: [each.total(*asked) for each in summed])

        return opened

    for lost in (False, True):
        with case(lost), pytest.MonkeyPatch.context() as patch:
            patch.setattr(trials._Site, "_open_rows", halves(lost))
            audit = run_audit(AuditPlan(games=("dp_admm",), trials=60, workers=1))
            assert (False in [gate.passed for gate in audit.gates]) is lost
