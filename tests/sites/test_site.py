"""A site: no study changes the limits of the owner, and rows are encoded independently."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.errors import DataError, RefusalError, StudyError
from dpadmm.sites.agent import Agent
from dpadmm.sites.notify_settings import NotifySettings
from dpadmm.sites.site import read_site, site_from
from dpadmm.studies.checks import DEPLOYABLE as METHODS
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.masking import public_key
from dpadmm.trusted.policy import MaskingLimits, Policy
from dpadmm.trusted.unit import PrivacyUnit, person_of

FILE = {
    "format": "dpadmm-site/2",
    "ledger": "ledger",
    "data": {"table": "table.csv", "label": "repaid"},
    "person": {"column": "who", "rows": 2},
    "limits": {
        "epsilon": 1.0,
        "delta": 1e-6,
        "methods": ["dp_admm"],
        "losses": ["logistic", "squared"],
        "max_rounds": 50,
        "min_rows": 3,
    },
}
MASKING = {"allow": True, "min_honest_sites": 3, "min_withstood": 2, "epsilon_if_others_collude": 2.5}
HEAD = "note,income,who,age,repaid\n"
ROWS = [
    "first,0.5,7,0.30,yes",
    ",0.2,8,0.31,no",
    "late,0.1,7,0.20,no",
    "x,0.9,7,0.10,yes",  # the third row of person 7
    "y,0.4,b9,0.60,no",
]
USED = [0, 1, 2, 4]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "table.csv").write_text(HEAD + "\n".join(ROWS) + "\n")
    return tmp_path


def written(folder, file=FILE):
    """The file as TOML; JSON's values are TOML's, one at a time."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in file.items() if not isinstance(value, dict)]
    for name, section in file.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    path = folder / "site.toml"
    path.write_text("\n".join(lines).replace("NaN", "nan").replace("Infinity", "inf") + "\n")
    return path


def opened(folder, **parts):
    return read_site(written(folder, merged(parts)))


def merged(parts):
    """``limits={"epsilon": 2}`` changes one value, None takes it away."""
    out = {}
    for name in {**FILE, **parts}:
        value = parts.get(name, FILE.get(name))
        if isinstance(value, dict) and isinstance(FILE.get(name), dict):
            value = {key: each for key, each in {**FILE[name], **value}.items() if each is not None}
        if value is not None:
            out[name] = value
    return out


def a_study(**parts):
    training = {"method": "dp_admm", "epsilon": 0.2, "delta": 1e-6, "n_rounds": 5, **parts.pop("training", {})}
    given = {"name": "loans", "features": ("age", "income"), "classes": ("no", "yes")}
    return Study(**{**given, "training": training, **parts})


def dense(rows):
    return np.asarray(rows._rows.features), rows._rows.labels


# Secure aggregation


def test_secure_aggregation_is_off_unless_its_owner_allows_it(folder):
    for off in ({}, {"secure_aggregation": {**MASKING, "allow": False}}):
        policy = opened(folder, **off).policy
        assert policy.masking is None
        assert policy.collusion_cap == policy.cap
    policy = opened(folder, secure_aggregation=MASKING).policy
    assert policy.masking == MaskingLimits(epsilon_if_others_collude=2.5, min_honest_sites=3, min_withstood=2)
    assert policy.collusion_cap == mu_from_epsilon(2.5, 1e-6) ** 2
    least = {**MASKING, "min_honest_sites": 2, "min_withstood": 1, "epsilon_if_others_collude": 1.0}
    assert opened(folder, secure_aggregation=least).policy.masking == MaskingLimits(1.0, 2, 1)


def masked_study(site, **changes):
    """A study of four sites, the first of which is this one."""
    keys = [site.make_key(), *(public_key(bytes([k] * 32)) for k in (1, 2, 3))]
    roster = [{"name": f"site-{k}", "key": key.hex()} for k, key in enumerate(keys)]
    training = {"method": "auto", "aggregation": "secure", "min_honest_sites": 3, "n_rounds": 4}
    return a_study(training=training, max_rows_per_site=100, roster=roster, **changes)


AUTO = {
    "limits": {"methods": ["pgd"]},
    "secure_aggregation": {**MASKING, "min_withstood": 1, "epsilon_if_others_collude": 1.25},
}


def test_a_site_finds_its_own_key_in_a_roster(folder):
    site = opened(folder, **AUTO)
    study = masked_study(site)
    other = site.make_key()
    (kept,) = [path for path in site.keys.iterdir() if path.name != other.hex()]
    assert site.keys == folder / "keys"
    assert (site.keys.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)
    assert public_key(kept.read_bytes()).hex() == kept.name
    site.begin()
    with site.guard() as guard:
        enrolled = guard.enrol(study)
        assert (enrolled.masks.me, enrolled.masks.n_sites) == (0, 4)
    book = read_ledger(site.ledger)
    assert book.collusion_promised == 3 * book.promised > 0
    assert book.collusion_cap == site.policy.collusion_cap > book.cap
    site.dry_run(replace(study, name="another"), book)
    dearer = replace(study, name="dearer", training=study.training.with_changes(epsilon=0.4))
    with pytest.raises(RefusalError) as caught:  # within the first limit, but not within that if all others collude
        site.dry_run(dearer, book)
    assert caught.value.code == "policy-collusion"


def test_a_missing_shared_or_duplicate_key_is_refused(folder):
    site = opened(folder, **AUTO)
    study = masked_study(site)
    (kept,) = site.keys.iterdir()
    site.begin()

    def refused(asked=study):
        with pytest.raises(RefusalError) as caught, site.guard() as guard:
            guard.enrol(asked)
        assert caught.value.code == "roster-not-mine"
        return str(caught.value)

    second = RosterEntry("site-3", site.make_key().hex())
    assert "several of its keys are in" in refused(replace(study, roster=(*study.roster[:3], second)))
    for mode in (0o640, 0o601):
        kept.chmod(mode)
        assert f"chmod 600 {kept}" in refused()
    kept.chmod(0o600)
    kept.write_bytes(bytes(31))
    assert "is not in the study's roster" in refused()
    kept.unlink()
    assert "none of its keys is in" in refused()


def test_secure_aggregation_against_the_limits_is_refused_before_rows_are_read(folder, monkeypatch):
    site = opened(folder, limits={"methods": ["pgd"]})
    study = masked_study(site)
    monkeypatch.setattr(type(site), "open_rows", None)
    site.begin()
    with pytest.raises(RefusalError) as caught, site.guard() as guard:
        guard.enrol(study)
    assert caught.value.code == "policy-aggregation"


# The file


def test_a_site_has_the_values_of_its_file(folder):
    site = opened(folder)
    assert site.policy == Policy(
        epsilon=1.0,
        delta=1e-6,
        methods=frozenset({"dp_admm"}),
        losses=frozenset({"logistic", "squared"}),
        max_rounds=50,
        min_rows=3,
        unit=PrivacyUnit(2, "who"),
    )
    assert (site.table, site.ledger) == (folder / "table.csv", folder / "ledger")
    assert site.label == "repaid"
    elsewhere = opened(folder, data={"table": "/data/table.csv"}, ledger="../books/ours")
    assert (str(elsewhere.table), elsewhere.ledger) == ("/data/table.csv", folder / "../books/ours")


WRONG = [
    ({"format": "dpadmm-site/1"}, "format must be"),
    ({"format": None}, "format must be"),
    ({"lgder": "x"}, "did you mean 'ledger'"),
    ({"ledger": None}, "ledger is missing"),
    ({"ledger": 5}, "ledger must be a text"),
    ({"ledger": " "}, "ledger must be a text"),
    ({"ledger": "~nosuchuser/ledger"}, "ledger: the path '~nosuchuser/ledger' begins with '~nosuchuser'"),
    ({"data": "table.csv"}, "[data] must be a section"),
    ({"data": {"table": None}}, "data.table is missing"),
    ({"data": {"table": ["a.csv"]}}, "data.table must be"),
    ({"data": {"scheduler": 8786}}, "data.scheduler must be"),
    ({"data": {"table": "~nosuchuser/a.csv"}}, "data.table: the path '~nosuchuser/a.csv' begins with"),
    ({"data": {"labels": "x"}}, "did you mean 'label'"),
    ({"data": {"label": 3}}, "data.label must be"),
    ({"data": {"label": "who"}}, "both data.label and person.column"),
    ({"data": {"label": "a\tb"}}, "data.label must be a text of one line"),
    (
        {"person": {"rows": None}},
        "person.rows is missing; give a whole number between 1 and 1,000,000,000: the maximum",
    ),
    ({"person": {"rows": 0}}, "person.rows must be a whole number between 1 and 1,000,000,000, not 0"),
    ({"person": {"rows": 1.0}}, "person.rows must be"),
    ({"person": {"rows": True}}, "person.rows must be"),
    ({"person": {"rows": -2}}, "person.rows must be"),
    ({"person": {"rows": 10**9 + 1}}, "person.rows must be"),
    ({"person": {"rows": 10**30}}, "more than 64 bits"),
    ({"person": {"rows": "x" * 99}}, f"not '{'x' * 59}"),
    ({"person": {"row": 1}}, "did you mean 'rows'"),
    ({"person": {"column": ""}}, "person.column must be"),
    ({"person": 1}, "[person] must be a section"),
    ({"limits": {"epsilon": [0.5, 1.0]}}, "limits.epsilon must be one number"),
    ({"limits": {"epsilon": "1"}}, "limits.epsilon must be"),
    ({"limits": {"epsilon": True}}, "limits.epsilon must be"),
    ({"limits": {"epsilon": float("nan")}}, "limits.epsilon must be"),
    ({"limits": {"epsilon": float("inf")}}, "limits.epsilon must be"),
    ({"limits": {"epsilon": -1.0}}, "limits.epsilon must be"),
    ({"limits": {"epsilon": 0}}, "limits.epsilon must be"),
    ({"limits": {"epsilon": 100.1}}, "limits.epsilon must be one number between 1e-06 and 100, not 100.1"),
    ({"limits": {"epsilon": 0.9e-6}}, "limits.epsilon must be"),
    ({"limits": {"delta": 0.0}}, "limits.delta must be"),
    ({"limits": {"delta": 0.011}}, "limits.delta must be"),
    ({"limits": {"delta": 0.9e-100}}, "limits.delta must be"),
    ({"limits": {"delta": float("nan")}}, "limits.delta must be"),
    ({"limits": {"methods": "dp_admm"}}, "limits.methods must be a list"),
    ({"limits": {"methods": []}}, "limits.methods must be a list"),
    ({"limits": {"methods": ["dp-admm"]}}, "did you mean 'dp_admm'"),
    ({"limits": {"methods": ["centralized"]}}, "has the unknown value"),
    ({"limits": {"methods": [1]}}, "has the unknown value"),
    ({"limits": {"losses": ["logistik"]}}, "did you mean 'logistic'"),
    ({"limits": {"losses": [["logistic"]]}}, "has the unknown value"),
    ({"limits": {"max_rounds": 0}}, "limits.max_rounds must be"),
    ({"limits": {"max_rounds": 1e3}}, "limits.max_rounds must be"),
    ({"limits": {"min_rows": 1}}, "limits.min_rows must be a whole number between 2 and"),
    ({"limits": {"min_rows": "many"}}, "limits.min_rows must be"),
    ({"limits": {"epsilom": 1.0}}, "did you mean 'epsilon'"),
    *(({"limits": {name: None}}, f"limits.{name} is missing") for name in FILE["limits"]),
    ({"secure_aggregation": True}, "[secure_aggregation] must be a section, not True; it has allow, min_honest_sites"),
    ({"secure_aggregation": {**MASKING, "alow": True}}, "did you mean 'allow'"),
    ({"secure_aggregation": {**MASKING, "allow": 1}}, "secure_aggregation.allow must be true or false, not 1"),
    (
        {"secure_aggregation": {**MASKING, "min_honest_sites": 1}},
        "min_honest_sites must be a whole number between 2 and",
    ),
    ({"secure_aggregation": {**MASKING, "min_withstood": 0}}, "min_withstood must be a whole number between 1 and"),
    (
        {"secure_aggregation": {**MASKING, "epsilon_if_others_collude": 0.99}},
        "epsilon_if_others_collude must be one number between 1 and 100",
    ),
    *(
        ({"secure_aggregation": {key: MASKING[key] for key in MASKING if key != name}}, f"{name} is missing; give")
        for name in MASKING
    ),
]


def test_an_error_in_the_file_is_one_sentence(folder):
    for parts, complaint in WRONG:
        with case(parts, complaint):
            with pytest.raises(StudyError) as caught:
                opened(folder, **parts)
            assert str(caught.value).startswith(str(folder / "site.toml"))
            assert complaint in str(caught.value)
            assert "\n" not in str(caught.value)


def test_limits_in_the_file_include_their_last_value(folder):
    least = {"epsilon": 1e-6, "delta": 1e-100, "max_rounds": 1, "min_rows": 2}
    most = {"epsilon": 100, "delta": 0.01, "max_rounds": 10**9, "min_rows": 10**9}
    for limits, rows in ((least, 1), (most, 10**9)):
        policy = opened(folder, limits=limits, person={"rows": rows}).policy
        assert {name: getattr(policy, name) for name in limits} == limits
        assert policy.unit.rows == rows


def test_neither_a_label_nor_a_person_needs_a_column_in_the_file(folder):
    site = opened(folder, data={"label": None}, person={"column": None})
    assert (site.label, site.policy.unit) == (None, PrivacyUnit(2))


@pytest.mark.parametrize("section", ["data", "person", "limits"])
def test_no_section_may_be_missing(folder, section):
    with pytest.raises(StudyError, match=rf"\[{section}\] is missing; it has "):
        site_from({name: value for name, value in FILE.items() if name != section}, folder / "site.toml")


def test_addresses_of_brokers_replace_those_of_the_invitation(folder):
    path, urls = folder / "site.toml", ["tls://relay:4222", "wss://[::1]:443"]
    assert opened(folder).addresses == ()
    assert site_from({**FILE, "server": {"addresses": urls}}, path).addresses == tuple(urls)
    for section, text in (
        ({}, r"server\.addresses is missing; give a list of texts, such as \["),
        ({"addresses": []}, r"server\.addresses must be a list of texts, such as \[.tls://host:port.\], not \[\]"),
        ({"addresses": "tls://relay:4222"}, r"server\.addresses must be a list of texts"),
        ({"addresses": ["tls://relay:4222", 3]}, r"server\.addresses must be a list of texts"),
        ({"addresses": ["relay:4222"]}, r"site\.toml: server\.addresses: 'relay:4222' is not the address of a broker"),
        ({"addresses": urls[:1] * 2}, r"server\.addresses: addresses of brokers: at most 20, and each once"),
        ({"address": urls}, r"\[server\]: unknown setting 'address'; did you mean 'addresses'\?"),
        (urls, r"\[server\] must be a section"),
    ):
        with pytest.raises(StudyError, match=text):
            site_from({**FILE, "server": section}, path)


def test_the_program_for_events_needs_a_full_path_and_must_be_executable(folder):
    path, here = folder / "site.toml", sys.executable
    assert opened(folder).notify is None
    site = site_from({**FILE, "notify": {"command": [here, "-c", "pass"], "delay": 0}}, path)
    assert site.notify == NotifySettings((here, "-c", "pass"), 0.0)
    assert site.warnings() == []
    assert NotifySettings(("x",)).delay == 10.0
    assert site_from({**FILE, "notify": {"command": [here], "delay": 86_400}}, path).notify.delay == 86_400.0
    (folder / "text").write_text("no program")
    for program in (folder, folder / "text", folder / "nowhere"):
        site = site_from({**FILE, "notify": {"command": [str(program)]}}, path)
        text = f"notify.command: {program} is not an executable file, so no event is delivered; install it"
        assert site.warnings() == [text]
    command = r"notify\.command must be a list of a program and its arguments, such as \[./usr/local/bin/notify.\]"
    for section, text in (
        ({}, rf"site\.toml: {command}$"),
        ({"command": []}, command),
        ({"command": here}, command),
        ({"command": [here, 3]}, command),
        ({"command": [here, ""]}, command),
        ({"command": [here, "a\0b"]}, command),
        ({"command": ["notify"]}, r"notify\.command must begin with the full path of a program, not 'notify'"),
        ({"command": [], "delay": -1}, rf"{command}; notify\.delay must be a number of seconds between 0 and 86,400"),
        ({"command": [here], "delay": 86_401}, r"notify\.delay must be .*, not 86401$"),
        ({"command": [here], "delay": True}, r"notify\.delay must be .*, not True$"),
        ({"command": [here], "delay": "1"}, r"notify\.delay must be .*, not '1'$"),
        ({"command": [here], "commands": 1}, r"\[notify\]: unknown setting 'commands'"),
        ([here], r"\[notify\] must be a section"),
    ):
        with pytest.raises(StudyError, match=text):
            site_from({**FILE, "notify": section}, path)


def test_a_file_that_others_may_write_is_a_warning(folder):
    site = opened(folder)
    assert site.warnings() == []  # there is no ledger yet
    site.begin()
    for file, ledger, worries in (
        (0o600, 0o700, []),
        (0o664, 0o700, []),  # anybody may read the limits, and a group may share them
        (0o602, 0o700, [f"may write to {site.path}"]),
        (0o600, 0o702, [f"may write to {site.ledger}"]),
        (0o600, 0o740, [f"others may read {site.ledger}"]),
        (0o600, 0o704, [f"others may read {site.ledger}"]),
        (
            0o646,
            0o777,
            [f"may write to {site.path}", f"may write to {site.ledger}", f"may read {site.ledger}"],
        ),
    ):
        os.chmod(site.path, file)
        os.chmod(site.ledger, ledger)
        for told, worry in zip(site.warnings(), worries, strict=True):
            assert worry in told


def test_a_ledger_is_as_secret_as_the_table(folder):
    site = opened(folder)
    before = os.umask(0)
    try:
        site.begin()
        with site.guard() as guard:
            guard.enrol(a_study())
            files = [site.ledger, *site.ledger.iterdir()]
            assert {path.name: path.stat().st_mode & 0o077 for path in files} == dict.fromkeys(
                [path.name for path in files], 0
            )
    finally:
        os.umask(before)


# The rows


def test_rows_in_the_order_of_the_study_and_no_other_column(folder):
    features, labels = dense(opened(folder).open_rows(a_study()))
    assert features.tolist() == np.float32([[0.30, 0.5], [0.31, 0.2], [0.20, 0.1], [0, 0], [0.60, 0.4]]).tolist()
    assert labels.tolist() == [1.0, -1.0, -1.0, 1.0, -1.0]
    turned, _ = dense(opened(folder).open_rows(a_study(features=("income", "age"))))
    assert turned.tolist() == features[:, ::-1].tolist()
    wider = opened(folder).open_rows(a_study(training={"intercept": True}))
    assert wider.n_features == 3


def test_the_first_rows_of_a_person_count_up_to_the_limit(folder):
    for k, used in ((1, [0, 1, 4]), (2, USED), (3, [0, 1, 2, 3, 4])):
        site = opened(folder, person={"rows": k})
        persons = site.rows.persons()
        assert np.flatnonzero(~persons.silent).tolist() == used
        assert (persons.n_rows, persons.n_persons, persons.n_above) == (5, 3, int(k < 3))
        features, _ = dense(site.open_rows(a_study()))
        assert np.flatnonzero(features.any(axis=1)).tolist() == used  # the others are zeros, not dropped
        assert site.open_rows(a_study()).n_rows == 5


def test_without_a_person_column_rows_are_persons(folder):
    site = opened(folder, person={"column": None})
    assert site.rows.persons().n_persons is None
    assert site.open_rows(a_study()).n_rows == 5
    assert site.policy.unit.rows == 2  # and is charged for it


def test_one_person_with_two_spellings():
    for one, other, same in [
        (1, "1", True),
        (1.0, "1", True),
        ("01", 1, True),
        (" 1 ", "1", True),
        ("1.00", "1", True),
        (b"a", "a", True),
        (-0.0, "0", True),
        ("1", "-1", False),
        ("10", "1", False),
        ("1e1", "10", True),
        ("1E+10", 10**10, True),
        ("4.000000000000001e+15", "4000000000000001", True),
        ("-2.5e1", "-25", True),
        ("1e+10", "1e+11", False),
        ("1e10a", "10000000000a", False),
        ("12e-1", "12", False),
        ("a", "A", True),
        ("Zoe\u0308", "ZO\u00cb", True),
        ("\uff17", "7", True),
        (12345678901234567890, "12345678901234567891", False),
        ("0" * 9000 + "1", "1", True),
    ]:
        with case(one, other, same):
            assert (person_of(one) == person_of(other)) is same


def test_a_row_without_an_id():
    for value in ["", "  ", None, float("nan")]:
        with case(value):
            assert person_of(value) == ""


def test_persons_do_not_depend_on_other_rows(folder):
    """Ids with more digits than a float, then one with a letter: the first rows stay the same persons."""
    ids = ["12345678901234567890", "12345678901234567891", "12345678901234567890"]
    for last in ("5", "b5", "12345678901234567890123"):
        rows = [f"x,0.1,{who},0.2,no" for who in [*ids, last]]
        (folder / "table.csv").write_text(HEAD + "\n".join(rows) + "\n")
        persons = opened(folder, person={"rows": 1}).rows.persons()
        assert persons.silent.tolist() == [False, False, True, False]


def test_a_class_that_no_row_has_changes_nothing(folder):
    training = {"loss": "softmax"}
    classes = ("maybe", "no", "yes")
    _, labels = dense(opened(folder).open_rows(a_study(classes=classes, training=training)))
    assert labels.tolist() == [2.0, 1.0, 1.0, 2.0, 1.0]
    (folder / "table.csv").write_text(HEAD + "\n".join(ROWS[1:]) + "\n")
    _, labels = dense(opened(folder).open_rows(a_study(classes=classes, training=training)))
    assert labels.tolist() == [1.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize("intercept", [False, True], ids=["", "with a constant column"])
def test_every_format_gives_the_same_rows(folder, intercept):
    source = opened(folder)
    table = pa.table(
        {
            "repaid": ["yes", "no", "no", "yes", "no"],
            "who": pa.array(["7", "8", "7", "7", "b9"]).dictionary_encode(),
            "age": [0.30, 0.31, 0.20, 0.10, 0.60],
            "junk": [None] * 5,
            "income": [0.5, 0.2, 0.1, 0.9, 0.4],
        }
    )
    pa.parquet.write_table(table, folder / "table.parquet")
    matrix = np.column_stack([table["income"], np.full(5, 1e3), table["age"]])
    who, labels = np.array([7, 8, 7, 7, 9]), np.array(["yes", "no", "no", "yes", "no"])
    np.savez(folder / "table.npz", features=matrix, labels=labels, who=who)
    parts = {name: getattr(csr_array(matrix), name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(folder / "sparse.npz", **parts, labels=labels, who=who)
    training = {"intercept": intercept}
    named, numbered = a_study(training=training), a_study(features=("x3", "x1"), training=training)
    cases = [
        ("table.parquet", "repaid", "who", named),
        ("table.npz", None, "who", numbered),
        ("sparse.npz", None, "who", numbered),
    ]
    wanted_features, wanted_labels = dense(source.open_rows(named))
    assert wanted_features.any(axis=1).tolist() == [True, True, True, False, True]  # no constant either
    for name, label, person, study in cases:
        site = opened(folder, data={"table": name, "label": label}, person={"column": person})
        rows = site.open_rows(study)
        features = rows._rows.features
        features = features.toarray() if hasattr(features, "toarray") else features
        assert np.array_equal(features, wanted_features), name
        assert np.array_equal(rows._rows.labels, wanted_labels), name


BAD_ROWS = [
    ({"data": {"table": "none.csv"}}, {}, None, "none.csv: there is no such file"),
    ({"data": {"table": "table.sav"}}, {}, None, "unknown ending '.sav'"),
    ({"data": {"label": "repayed"}}, {}, None, "did you mean 'repaid'"),
    ({"data": {"label": None}}, {}, None, "data.label is missing"),
    ({"person": {"column": "whom"}}, {}, None, "did you mean 'who'"),
    ({}, {"features": ("age", "incom")}, None, "did you mean 'income'"),
    ({}, {"features": ("age", "who")}, None, "'who' is the person column"),
    ({}, {"features": ("age", "repaid")}, None, "'repaid' is the label column"),
    ({}, {}, "x,0.1,7", "cannot be read as CSV"),
]
ODD_CELLS = {
    "a missing number": ("x,,new,0.1,no", [0.1, 0.0]),
    "not a number": ("x,nan,new,0.1,no", [0.1, 0.0]),
    "text for a number": ("x,much,new,0.1,no", [0.1, 0.0]),
    "a huge number": ("x,0.0,new,1e300,no", [1.0, 0.0]),
    "an infinite number": ("x,0.2,new,inf,no", [0.0, 0.2]),
    "a person without a name": ("x,0.1,,0.2,no", [0.0, 0.0]),
    "no label": ("x,0.1,new,0.1,", [0.0, 0.0]),
    "a label that is no class": ("x,0.1,new,0.1,HIV", [0.0, 0.0]),
}


@pytest.mark.parametrize(("row", "encoded"), ODD_CELLS.values(), ids=ODD_CELLS)
def test_enrolment_does_not_depend_on_cells(folder, row, encoded):
    """Otherwise studies could query single cells without cost."""
    with (folder / "table.csv").open("a") as file:
        file.write(f"{row}\n")
    site = opened(folder)
    features, labels = dense(site.open_rows(a_study()))
    assert len(features) == 6
    np.testing.assert_allclose(features[-1], encoded, atol=1e-5)
    site.begin()
    with site.guard() as guard:
        guard.enrol(a_study())
    silent = site.open_rows(a_study(training={"intercept": True}))._rows
    heard = row.endswith(",no") and ",new," in row
    assert labels[-1] == -1.0
    assert bool(silent.features[-1].any()) is heard  # the constant column is silent too


@pytest.mark.parametrize(("parts", "study", "row", "complaint"), BAD_ROWS, ids=[each[3] for each in BAD_ROWS])
def test_rows_that_do_not_fit_are_one_sentence_for_the_owner(folder, parts, study, row, complaint):
    if row is not None:
        with (folder / "table.csv").open("a") as file:
            file.write(f"{row.replace('7', 'new')}\n")
    site = opened(folder, **parts)
    with pytest.raises(DataError) as caught:
        site.open_rows(a_study(**study))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--classes" not in str(caught.value)
    site.begin()
    with site.guard() as guard, pytest.raises(RefusalError) as refused:
        guard.enrol(a_study(**study))
    assert refused.value.code in ("study-unfit", "policy-loss")
    assert complaint not in str(refused.value)  # whoever asked learns no more than that


# The guard of a site


def test_a_person_is_charged_for_the_maximum_number_of_rows(folder):
    site, study = opened(folder), a_study()
    site.begin()
    with site.guard() as guard:
        agent = Agent(guard, study)
        agent.step(1, np.zeros((2, 1)))
    account = read_ledger(site.ledger).accounts[study.hash]
    price = (2 / study.noise_multiplier) ** 2
    assert account.rounds[1].mu_squared == price
    assert account.reservation.mu_squared == 5 * price
    assert (account.about["n_rows"], account.about["rows_per_person"]) == (5, 2)


def test_rows_that_change_after_enrolment_are_refused(folder):
    site, study = opened(folder), a_study()
    site.begin()
    with site.guard() as guard:
        upload = Agent(guard, study).step(1, np.zeros((2, 1)))
    kept = shutil.copy(folder / "table.csv", folder / "kept.csv")
    text = (folder / "table.csv").read_text()
    for changed in (text.replace("0.31", "0.32"), text.replace("0.31,no", "0.31,yes"), text + "z,0,z,0,no\n"):
        (folder / "table.csv").write_text(changed)
        with site.guard() as guard, pytest.raises(RefusalError) as caught:
            Agent(guard, study)
        assert caught.value.code == "data-changed"
    shutil.move(kept, folder / "table.csv")
    (folder / "table.csv").write_text(text.replace("first", "other"))  # a column that nobody uses
    with site.guard() as guard:
        agent = Agent(guard, study)
        assert agent.last_round == 1
        assert np.array_equal(agent.step(1, np.zeros((2, 1))), upload)


@pytest.mark.parametrize("rows", [1, 3])
def test_another_cap_on_rows_of_a_person_is_refused(folder, rows):
    site, study = opened(folder), a_study()
    site.begin()
    with site.guard() as guard:
        guard.enrol(study)
    with opened(folder, person={"rows": rows}).guard() as guard, pytest.raises(RefusalError) as caught:
        guard.enrol(study)
    assert caught.value.code == "data-changed"
    silent = "x,0,7,0,yes"  # in place of the third row of person 7, which counted as zeros
    (folder / "table.csv").write_text(HEAD + "\n".join([*ROWS[:3], silent, ROWS[4]]) + "\n")
    with opened(folder, person={"rows": 3}).guard() as guard, pytest.raises(RefusalError) as caught:
        guard.enrol(study)  # the same rows, at another price
    assert caught.value.code == "study-changed"


@pytest.mark.parametrize(
    ("limits", "study", "code", "numbers"),
    [
        ({"methods": ["dp_sgd"]}, {}, "policy-method", "does not allow method dp_admm (allowed: dp_sgd)"),
        ({"losses": ["hinge", "huber"]}, {}, "policy-loss", "does not allow loss logistic (allowed: hinge, huber)"),
        ({"max_rounds": 4}, {}, "policy-rounds", "the study has 5, the owner allows 4"),
        ({"min_rows": 6}, {}, "policy-rows", "the table has 5, the owner requires 6"),
        ({"epsilon": 0.1}, {}, "budget-cap", "requested 0.41"),
    ],
)
def test_a_study_beyond_a_limit_is_refused_with_the_numbers(folder, limits, study, code, numbers):
    site = opened(folder, limits=limits)
    site.begin()
    before = read_ledger(site.ledger).fingerprint
    with site.guard() as guard, pytest.raises(RefusalError) as caught:
        guard.enrol(a_study(**study))
    assert caught.value.code == code
    assert numbers in str(caught.value)
    with pytest.raises(RefusalError) as rehearsed:
        site.dry_run(a_study(**study), read_ledger(site.ledger))
    assert (rehearsed.value.code, str(rehearsed.value)) == (code, str(caught.value))
    assert read_ledger(site.ledger).fingerprint == before


def test_two_studies_do_not_get_the_same_remainder(folder):
    site = opened(folder)
    site.begin()
    first, second = a_study(training={"epsilon": 0.4}), a_study(name="more", training={"epsilon": 0.4})
    with site.guard() as guard:
        guard.enrol(first)
        with pytest.raises(RefusalError, match=r"requested 0.8.* allowed 1.0000 .* left 0\.") as caught:
            guard.enrol(second)
        assert caught.value.code == "budget-cap"
        guard.leave(first.hash)
        guard.enrol(second)


def test_a_dry_run_gives_the_result_of_enrolment_and_writes_nothing(folder):
    site, study = opened(folder), a_study()
    site.begin()

    def files():  # without SQLite's note of who is reading
        return {path.name: path.read_bytes() for path in site.ledger.iterdir() if path.suffix != ".sqlite-shm"}

    def rehearsed():
        before = files()
        try:
            return site.dry_run(study, read_ledger(site.ledger)).terms
        except RefusalError as refusal:
            return refusal.code
        finally:
            assert files() == before

    assert rehearsed() == study.terms
    with site.guard() as guard:
        guard.enrol(study)
        assert rehearsed() == study.terms  # beside an agent, and again
        guard.leave(study.hash)
    assert rehearsed() == "study-changed"  # it has ended


def test_a_ledger_is_created_once(folder):
    site = opened(folder)
    with pytest.raises(RefusalError) as caught, site.guard():
        pass
    assert caught.value.code == "ledger-missing"
    site.begin()
    with site.guard() as guard:
        guard.enrol(a_study())
    before = read_ledger(site.ledger).fingerprint
    with pytest.raises(RefusalError) as caught:
        site.begin()
    assert caught.value.code == "ledger-exists"
    assert read_ledger(site.ledger).fingerprint == before


def test_an_interrupted_creation_can_be_repeated(folder):
    site = opened(folder)
    site.ledger.mkdir()
    (site.ledger / "mark").touch()
    site.begin()
    assert read_ledger(site.ledger).cap == site.policy.cap


def test_limits_that_the_owner_changes_hold_at_once(folder):
    opened(folder).begin()
    stricter = opened(folder, limits={"epsilon": 0.05})
    with stricter.guard() as guard, pytest.raises(RefusalError) as caught:
        guard.enrol(a_study())
    assert caught.value.code == "budget-cap"
    assert read_ledger(stricter.ledger).cap == stricter.policy.cap
    wider = opened(folder)
    wider.dry_run(a_study(), read_ledger(wider.ledger))
    with wider.guard() as guard:
        guard.enrol(a_study())


@settings(max_examples=40, deadline=None)
@given(
    name=st.text("abc é[]{}", min_size=1, max_size=20),
    features=st.sampled_from([("age",), ("income", "age"), ("age", "income"), ("age", "who"), ("repaid",)]),
    classes=st.sampled_from([("no", "yes"), ("yes", "no"), (0, 1)]),
    method=st.sampled_from(METHODS),
    loss=st.sampled_from(["logistic", "logistic", "logistic", "squared", "smoothed_hinge"]),
    n_rounds=st.integers(1, 70),
    epsilon=st.floats(0.01, 1.0),
    delta=st.floats(1e-12, 0.5),
    allow_missed_rounds=st.booleans(),
)
def test_nothing_in_a_study_changes_the_limits(tmp_path_factory, **parts):
    folder = tmp_path_factory.mktemp("site")
    (folder / "table.csv").write_text(HEAD + "\n".join(ROWS) + "\n")
    site = opened(folder, limits={"methods": ["dp_admm", "dp_sgd"], "losses": ["logistic"]})
    policy, cap = site.policy, site.policy.cap
    site.begin()
    training = {name: parts.pop(name) for name in ("method", "loss", "n_rounds", "epsilon", "delta")}
    try:
        study = Study(**parts, training=training)
    except StudyError:
        return
    with site.guard() as guard:
        try:
            guard.enrol(study)
        except RefusalError as refusal:
            answered = refusal.code
        else:
            answered = "enrolled"
    book = read_ledger(site.ledger)
    assert (site.policy, site.policy.cap, book.cap) == (policy, cap, cap)
    assert (site.policy, site.label) == (read_site(site.path).policy, "repaid")
    assert float(book.promised) <= cap
    if answered == "enrolled":
        terms = study.terms
        assert terms.method in policy.methods
        assert terms.loss in policy.losses
        assert terms.plan.n_rounds <= policy.max_rounds
        assert (
            book.accounts[study.hash].reservation.mu_squared == terms.plan.n_rounds * (2 / study.noise_multiplier) ** 2
        )
        assert not {"who", "repaid"} & set(study.features)
    else:
        assert not book.accounts


def test_a_study_has_no_field_of_a_policy():
    """The requested values have the names of the limits."""
    both = {each.name for each in fields(Policy)} & {each.name for each in fields(Study)}
    assert both == set()


@pytest.mark.parametrize("form", ["csv", "parquet", "parquet, coded"])
def test_a_person_s_rows_are_counted_through_the_whole_table(folder, form):
    """Rows of a person count across blocks, batches and row groups."""
    n = 50_000
    ids = [f"person {j}" for j in range(n)]
    for row in (0, 1, n // 2, n - 1):  # two may count
        ids[row] = "ada"
    ids[5], ids[n - 5] = "bob", "Bob"  # may be one, or two: neither counts
    ids[7] = ids[n - 7] = "eve"
    ids[n - 9] = ""
    columns = {"note": ["a note of some length"] * n, "income": [0.5] * n, "who": ids, "age": [0.25] * n}
    table = pa.table({**columns, "repaid": ["yes", "no"] * (n // 2)})
    path = folder / f"table.{form.partition(',')[0]}"
    if form == "csv":
        pa.csv.write_csv(table, path)
        assert path.stat().st_size > 2 * 2**20
    else:
        pa.parquet.write_table(table, path, row_group_size=9_000, use_dictionary=form != "parquet")
    site = opened(folder, data={"table": path.name})
    rows = site.open_rows(a_study())
    silent = np.flatnonzero(~np.asarray(rows._rows.features).any(axis=1))
    assert rows.n_rows == n
    assert silent.tolist() == sorted([n // 2, n - 1, 5, n - 5, n - 9])
    persons = site.rows.persons()
    assert (persons.n_above, persons.n_ambiguous, persons.n_without_id) == (1, 1, 1)
    assert np.flatnonzero(persons.silent).tolist() == silent.tolist()
