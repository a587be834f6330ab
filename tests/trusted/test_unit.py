"""The privacy unit: silent rows, the effect of replacing a person, and the checks of the guard."""

from __future__ import annotations

import itertools
import sys
import unicodedata

import numpy as np
import pytest
from cases import coded, prove
from guards import POLICY, STUDY, TinyRows, guarded, refusal, rows
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array

from dpadmm.errors import DataError, StudyError
from dpadmm.matrices.memmap import is_unnamed
from dpadmm.matrices.storage import GrowingArray, compact_csr
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import NO_ID, ONE_ROW, Ids, PrivacyUnit, person_of

INVISIBLE = "\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200c\u200d\u200e\u2060\u3164\ufe0f\ufeff\uffa0"
CELLS = ["", " ", "NA", "nan", "7", "07", " 7", "7.0", "ada", "Ada", "ADA ", "b", "c", "d", "e"]


def silent(ids, k):
    return PrivacyUnit(k, "id").persons(Ids.of(ids), len(ids)).silent.tolist()


def silent_by_the_rules(ids, k):
    """Apply the rules of the docstring row by row."""
    names = [person_of(cell) for cell in ids]
    return [
        name in NO_ID
        or len({cell for cell, other in zip(ids, names, strict=True) if other == name}) > 1
        or names[:row].count(name) >= k
        for row, name in enumerate(names)
    ]


@prove
@given(ids=st.lists(st.sampled_from(CELLS), min_size=1, max_size=12), k=st.integers(1, 3))
def test_silent_rows_follow_the_rules(ids, k):
    assert silent(ids, k) == silent_by_the_rules(ids, k)


@prove
@given(
    ids=st.lists(st.sampled_from(CELLS), min_size=1, max_size=12),
    k=st.integers(1, 3),
    data=st.data(),
)
def test_replacing_a_person_changes_at_most_2k_active_rows(ids, k, data):
    person = data.draw(st.sampled_from(ids))
    replaced = [row for row, cell in enumerate(ids) if cell == person]
    if person_of(person) in NO_ID:  # each of these rows is a different person
        replaced = [data.draw(st.sampled_from(replaced))]
    rest = [cell for row, cell in enumerate(ids) if row not in replaced]
    allowed = [cell for cell in [*CELLS, "new"] if cell not in rest or person_of(cell) in NO_ID]
    newcomer = data.draw(st.sampled_from(allowed))
    others = [newcomer if row in replaced else cell for row, cell in enumerate(ids)]
    counted = [
        {(row, cell) for row, (cell, zero) in enumerate(zip(table, silent(table, k), strict=True)) if not zero}
        for table in (ids, others)
    ]
    assert len(counted[0] ^ counted[1]) <= 2 * k


def test_persons_report_counts_by_reason():
    ids = ["a", "a", "a", "", "NA", "7", "07", "b", None]
    persons = PrivacyUnit(2, "id").persons(Ids.of(ids), 9)
    assert (persons.n_rows, persons.n_used, persons.n_persons) == (9, 3, 3)
    assert (persons.n_above, persons.n_ambiguous, persons.n_without_id) == (1, 1, 3)


def test_spellings_without_rows_are_ignored():
    """A Parquet dictionary may contain deleted values."""
    for spellings in (["7", "07", "8"], ["7", "9", "8", "07"], ["7", "z", "8", "y"]):
        persons = PrivacyUnit(1, "id").persons(Ids(np.array([0, 2]), spellings), 2)
        assert persons.silent.tolist() == [False, False]
        assert (persons.n_persons, persons.n_ambiguous) == (2, 0)


SPELLINGS = {
    "compatibility form of a capital letter": ("ℌ1", "h1"),
    "full width": ("Ａ７", "a7"),
    "full width digits": ("０７", "7"),
    "compatibility form of a capital letter with marks": ("\U0001d6b0\u0308\u0301", "ΐ"),
    "ligature and sharp s": ("ﬀß", "FFSS"),
    "casefold gives text that is not normalised": ("ΐ", "ΐ".upper()),
    "casefold gives marks in another order": ("ᾷ", "ᾷ".upper()),
    "composed and decomposed": ("Zo\u00eb", "zoe\u0308"),
    "two marks in either order": ("a\u0323\u0307", "A\u0307\u0323"),
    "soft hyphen": ("ab\u00adc", "ABC"),
    "zero width spaces around a blank": ("\u200b 7\ufeff", "7"),
    "invisible characters alone": ("\u200b", ""),
    "invisible only after compatibility": ("a\uffa0", "a"),
    "invisible inside a number": ("0\u20607.0", "7"),
    "marks that meet where an invisible character was": ("a\u0307\u034f\u0323", "a\u0323\u0307"),
}


def test_unicode_spellings_of_one_id_are_one_person():
    for name, (one, other) in SPELLINGS.items():
        with case(name):
            assert person_of(one) == person_of(other)
            assert silent([one, other, "b"], 1) == [True, True, False]


# casefold distinguishes the Turkish dotless i from the lower case of its capital
LETTERS = st.characters(exclude_characters="ı")


@prove
@given(text=st.text(LETTERS) | st.text(st.sampled_from("ℌᾷΐİǰſßﬀ\u0345\u0308\u0301\u0342\u00ad 07.e+-"), max_size=8))
def test_normalisation_is_idempotent_and_ignores_case_and_form(text):
    name = person_of(text)
    assert person_of(name) == name
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert person_of(unicodedata.normalize(form, text)) == name
    ordered = unicodedata.normalize("NFD", text)  # Unicode defines case folding for canonically ordered marks only
    for changed in (ordered.upper(), ordered.lower(), ordered.casefold()):
        assert person_of(changed) == name


def test_normalisation_of_every_character_is_idempotent_and_caseless():
    for letter in map(chr, itertools.chain(range(0xD800), range(0xE000, sys.maxunicode + 1))):
        if not unicodedata.decomposition(letter) and letter.swapcase() == letter and letter not in INVISIBLE:
            continue
        name = person_of(letter)
        assert person_of(name) == name
        assert letter == "ı" or person_of(letter.upper()) == name
        assert not any(item in INVISIBLE for item in name)


def test_missing_ids():
    for cell in ["", " ", "NA", "N/A", "#N/A", "#NA", "NaN", "-nan", "null", "None", None, np.nan]:
        with case(cell):
            persons = PrivacyUnit(5, "id").persons(Ids.of([cell, "a"]), 2)
            assert persons.silent.tolist() == [True, False]
            assert (persons.n_without_id, persons.n_persons) == (1, 1)


def test_ids_may_be_arbitrary_bytes():
    assert silent([b"\xff", b"\xfe", b"a", b"b"], 1) == [True, True, False, False]  # both cannot be read


def test_no_row_is_silent_without_an_id_column():
    persons = ONE_ROW.persons(None, 3)
    assert (persons.n_rows, persons.n_used, persons.n_persons) == (3, 3, None)
    assert (persons.n_above, persons.n_ambiguous, persons.n_without_id) == (0, 0, 0)


def test_rows_per_person_must_be_an_integer():
    for number in [0, -1, 1.5, float("nan"), True]:
        with (
            case(number),
            pytest.raises(StudyError, match="rows of a person must be a whole number of at least 1"),
        ):
            PrivacyUnit(number)


def test_ids_are_required_if_and_only_if_there_is_a_column():
    features, labels = rows()
    with pytest.raises(DataError, match="column: 'who'"):
        protect(features, labels, PrivacyUnit(1, "who"))
    with pytest.raises(DataError, match="column: None"):
        protect(features, labels, ONE_ROW, Ids.of(["a"] * len(labels)))
    with pytest.raises(DataError, match=f"3 ids for {len(labels)} rows"):
        protect(features, labels, PrivacyUnit(1, "who"), Ids.of("abc"))


def test_protect_does_not_change_the_callers_rows():
    features, labels = rows()
    before = features.copy()
    unit, ids = PrivacyUnit(1, "who"), Ids.of(["a", "a", *map(str, range(len(labels) - 2))])
    dense = protect(features, labels, unit, ids).features
    sparse, short = (protect(kind(features), labels, unit, ids).features for kind in (csr_array, coded))
    assert np.array_equal(features, before)
    assert np.array_equal(dense[1], np.zeros(features.shape[1]))
    assert np.array_equal(np.delete(dense, 1, axis=0), np.delete(features, 1, axis=0))
    assert np.array_equal(sparse.toarray(), dense)
    assert np.array_equal(short.toarray(), dense)


def in_a_file(block):
    growing = GrowingArray(block.dtype, block.shape[1], memory_bytes=0)
    growing.append(block)
    return growing.finish()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_owned_rows_are_silenced_in_place(kind, monkeypatch):
    monkeypatch.setattr("dpadmm.matrices.memmap.PORTION_BYTES", 64 * 24)  # several portions
    features = np.random.default_rng(0).uniform(0.1, 0.5, (50, 3))
    ids = Ids.of([row if row % 3 else "" for row in range(50)])
    matrix = in_a_file(features)
    if kind == "sparse":
        places = in_a_file(np.tile(np.arange(3, dtype=np.int32), 50)[:, None])
        matrix = compact_csr(matrix.reshape(-1), places.reshape(-1), np.arange(0, 151, 3), (50, 3))
    assert is_unnamed(matrix)
    done = protect(matrix, np.ones(50), PrivacyUnit(1, "who"), ids, owned=True).features
    assert done is matrix
    out = done.toarray() if kind == "sparse" else np.asarray(done)
    wanted = np.where((np.arange(50) % 3 == 0)[:, None], 0.0, features)
    assert np.array_equal(out, wanted)


def test_caller_can_change_rows_that_were_not_handed_over():
    """The digest and the row norms are computed once and must stay those of the rows that are summed."""
    for ours in (False, True):
        features, labels = rows()
        held = CheckedRows(protect(features, labels, ONE_ROW, owned=ours))
        assert np.shares_memory(held._rows.features, features) == ours
        before = held.digest()
        if not ours:
            features *= 0.5
            labels *= -1
            assert held.digest() == before


def test_a_guard_refuses_rows_of_another_unit(tmp_path):
    features, labels = rows()
    for unit in (PrivacyUnit(2), PrivacyUnit(1, "who")):
        with guarded(tmp_path, lambda study, unit=unit: TinyRows(features, labels, unit), POLICY) as guard:
            refused = refusal(guard.enrol, STUDY)
            assert refused.code == "study-unfit"
            assert "rows per person" in str(refused)
            assert not guard._ledger.status().accounts


def test_private_rows_store_their_privacy_unit():
    features, labels = rows()
    unit = PrivacyUnit(2, "who")
    held = CheckedRows(protect(features, labels, unit, Ids.of(range(len(labels)))))
    assert held.unit == unit
    assert held.n_rows == len(labels)
