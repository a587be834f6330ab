"""The budget of a site: its ledger shown, exported, backed up and restored, while it runs and when it is damaged."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256

import pytest
from federations import small_study, write_rows
from guards import ROUNDS, STUDY, Z, consensus, guarded, study
from looping import case
from mixed_tables import to_toml

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.federation.local import SECURE_AGGREGATION, new_site
from dpadmm.federation.site.decisions import accept
from dpadmm.rendering.formats import rounded_up
from dpadmm.trusted.ledger import DATABASE, MARK, Ledger, read_ledger

A, B = "a1" * 32, "b2" * 32


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "ledger"
    with Ledger.open(folder, cap=4.0, create=True) as ledger:
        ledger.reserve(A, 1.0, about={"name": "a study of [red] herrings with a rather long name, over hospitals"})
        for round in (1, 2):
            ledger.spend(A, round, digest="0" * 64, mu_squared=0.25, upload=b"secret bytes")
        ledger.reserve(B, 1.0, about={})
        ledger.spend(B, 1, digest="0" * 64, mu_squared=0.25, upload=b"secret bytes")
        ledger.close_study(B)
    return folder


def test_help_fits_the_screen(cli):
    for command in ["budget", "export", "backup", "restore"]:
        with case(command):
            text = cli("site", command, "--help").succeeded().out
            assert max(map(len, text.splitlines())) <= 80
            assert "…" not in text


def test_show_says_what_is_spent_reserved_and_left(cli, folder):
    answer = cli("site", "budget", "--ledger", folder).succeeded()
    lines = answer.out.splitlines()
    assert max(len(line) for line in lines if str(folder) not in line) <= 80
    rows = {line.rsplit(maxsplit=2)[0].strip(): line.split()[-2:] for line in lines if len(line.split()) > 2}
    for words, mu_squared in (
        ("spent by releases", 0.75),
        ("reserved by open studies", 0.5),
        ("spent and reserved", 1.25),
        ("left for new studies", 2.75),
        ("limit set by the owner", 4.0),
    ):
        shown_mu, shown_epsilon = map(float, rows[words])
        epsilon = exact_epsilon(mu_squared**0.5, 1e-5)
        assert shown_mu == mu_squared
        if words.startswith("left"):
            assert epsilon - 1.1e-4 <= shown_epsilon <= epsilon * (1 + 1e-9)  # never overstated
        else:
            assert epsilon <= shown_epsilon * (1 + 1e-9) <= epsilon + 1.1e-4  # never understated
    assert "open" in answer.out
    assert "left" in answer.out
    assert "[red]" in answer.out
    assert "…" not in answer.out


def test_show_as_json_at_another_delta(cli, folder):
    answer = cli("site", "budget", "--ledger", folder, "--delta", "1e-3", "--json").succeeded().json
    assert answer["totals"]["spent"] == {"mu_squared": 0.75, "epsilon": exact_epsilon(0.75**0.5, 1e-3)}
    assert [study["state"] for study in answer["studies"]] == ["open", "left"]
    assert [study["releases"] for study in answer["studies"]] == [2, 1]


def test_both_sums_of_a_study_with_secure_aggregation(cli, tmp_path):
    with Ledger.open(tmp_path / "ledger", cap=1.0, collusion_cap=4.0, create=True) as ledger:
        ledger.reserve(A, 0.5, about={"name": "masked"}, shares=5)
        ledger.spend(A, 1, digest="0" * 64, mu_squared=0.1, upload=b"")
        ledger.reserve(B, 0.25, about={})
    answer = cli("site", "budget", "--ledger", tmp_path / "ledger", "--json").succeeded().json
    assert {name: each["mu_squared"] for name, each in answer["totals"].items()} == pytest.approx(
        {"spent": 0.1, "reserved": 0.65, "promised": 0.75, "left": 0.25, "cap": 1.0}
    )
    assert {name: each["mu_squared"] for name, each in answer["totals_if_others_collude"].items()} == pytest.approx(
        {"spent": 0.5, "reserved": 2.25, "promised": 2.75, "left": 1.25, "cap": 4.0}
    )
    (masked, plain) = answer["studies"]
    assert masked["collusion_spent"]["epsilon"] == pytest.approx(exact_epsilon(0.5**0.5, 1e-5))
    assert plain["collusion_reserved"] == plain["reserved"]
    shown = cli("site", "budget", "--ledger", tmp_path / "ledger").succeeded().out
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    for words in ("if all other sites collude", "honest sites", "a computational assumption"):
        assert words in " ".join(shown.split())
    for total in (0.5, 2.5, 2.75, 4.0):
        assert rounded_up(exact_epsilon(total**0.5, 1e-5)) in shown
    cli("site", "budget", "--ledger", tmp_path / "ledger").succeeded()


def test_one_sum_without_secure_aggregation(cli, folder):
    assert "work together" not in cli("site", "budget", "--ledger", folder).succeeded().out


def test_verify(cli, folder):
    answer = cli("site", "budget", "--ledger", folder).succeeded()
    assert "7 records, 2 studies" in answer.out.replace("\n", " ")
    shown = cli("site", "budget", "--ledger", folder).succeeded().out
    assert answer.out.split()[-1] == shown.split()[-1]


def test_an_exported_ledger_can_be_checked_by_anyone(cli, folder, tmp_path):
    cli("site", "export", "--ledger", folder, "-o", tmp_path / "out" / "ledger.json").succeeded()
    text = (tmp_path / "out" / "ledger.json").read_text()
    exported = json.loads(text)
    chain = "0" * 64
    for record in exported["records"]:
        line = [value for name, value in record.items() if name != "chain"]
        chain = sha256(f"{chain}\n{json.dumps(line)}".encode()).hexdigest()
        assert record["chain"] == chain
    assert chain == exported["fingerprint"]
    assert [record["kind"] for record in exported["records"]].count("spend") == 3
    assert exported["records"][2]["content"] == sha256(b"secret bytes").hexdigest()
    assert "secret" not in text


def test_a_running_agent_is_not_disturbed(cli, folder, tmp_path):
    with Ledger.open(folder, cap=4.0) as ledger:
        ledger.spend(A, 3, digest="0" * 64, mu_squared=0.25, upload=b"")
        cli("site", "budget", "--ledger", folder).succeeded()
        assert (
            cli("site", "budget", "--ledger", folder, "--json").succeeded().json["totals"]["spent"]["mu_squared"] == 1.0
        )
        cli("site", "export", "--ledger", folder, "-o", tmp_path / "ledger.json").succeeded()
        ledger.spend(A, 4, digest="0" * 64, mu_squared=0.25, upload=b"")
        ledger.verify()


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda folder: (folder / MARK).write_bytes(b""), "mark"),
        (lambda folder: (folder / MARK).unlink(), "mark"),
        (lambda folder: (folder / DATABASE).unlink(), DATABASE),
        (lambda folder: (folder / DATABASE).write_bytes(b"not a database" * 400), "not a database"),
        (lambda folder: [(folder / name).unlink() for name in (MARK, DATABASE)], "no ledger"),
    ],
)
def test_a_ledger_that_cannot_be_trusted_is_one_sentence(cli, folder, harm, complaint):
    harm(folder)
    answer = cli("site", "budget", "--ledger", folder)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("dpadmm: ")
    assert answer.err.count("\n") == 1
    assert complaint in answer.err


@pytest.mark.parametrize("name", [MARK, DATABASE])
def test_an_export_cannot_overwrite_the_ledger(cli, folder, name):
    answer = cli("site", "export", "--ledger", folder, "-o", folder / name)
    assert answer.code == 2
    assert "another name" in answer.err
    cli("site", "budget", "--ledger", folder).succeeded()


@pytest.mark.parametrize("delta", ["0", "1", "nan", "-1"])
def test_delta_is_between_0_and_1(cli, folder, delta):
    answer = cli("site", "budget", "--ledger", folder, "--delta", delta)
    assert answer.code == 2
    assert "delta" in answer.err


# What a guard pinned, and privacy reports from it


@pytest.fixture
def enrolled(tmp_path):
    folder = tmp_path / "guarded"
    with guarded(folder) as guard:
        for each in (STUDY, study(n_rounds=3)):
            guard.enrol(each)
        guard.answer(STUDY.hash, 1, consensus(1))
    return folder


def test_what_the_guard_knows_of_the_rows_is_never_shown(cli, enrolled, tmp_path):
    cli("site", "export", "--ledger", enrolled, "-o", tmp_path / "ledger.json").succeeded()
    cli("site", "export", STUDY.hash[:20], "--ledger", enrolled, "-o", tmp_path / "report.json").succeeded()
    as_json = cli("site", "budget", "--ledger", enrolled, "--json").succeeded()
    seen = [
        as_json.out,
        cli("site", "budget", "--ledger", enrolled).succeeded().out,
        *((tmp_path / name).read_text() for name in ("ledger.json", "report.json")),
    ]
    for account in read_ledger(enrolled).accounts.values():
        for secret in ("salt", "rows"):
            assert len(account.about[secret]) >= 32
            assert not any(account.about[secret] in text for text in seen)
    about = as_json.json["studies"][0]["about"]
    assert about["plan"] == [{"statistic": "gradient", "noise_multiplier": Z, "rounds": ROUNDS}]
    assert not {"salt", "rows"} & about.keys()


def test_a_report_by_hash_or_name(cli, enrolled, tmp_path):
    words = ["site", "export", "--ledger", enrolled]
    cli(*words, STUDY.hash[:12], "-o", tmp_path / "a.json", "--name", "Ward 7").succeeded()
    report = read_privacy_report(tmp_path / "a.json")
    assert (report.study_hash, report.study) == (STUDY.hash, STUDY.name)
    assert report.members(0) == {"Ward 7": 8}
    cli(*words, STUDY.hash, "-o", tmp_path / "b.json", "--name", "Ward 7").succeeded()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        (STUDY.name, "matches more than one study"),
        ("", "matches more than one study"),
        ("nothing", "is not a study in this ledger; give the name, or the beginning of the hash, of one of these: "),
        ("nothing", f"{STUDY.hash[:12]} {STUDY.name}"),
    ],
)
def test_a_study_must_be_named_clearly(cli, enrolled, tmp_path, chosen, complaint):
    answer = cli("site", "export", chosen, "--ledger", enrolled, "-o", tmp_path / "a.json")
    assert answer.code == 2
    assert complaint in answer.err
    assert STUDY.hash[:12] in answer.err
    assert not (tmp_path / "a.json").exists()


def test_no_report_without_a_guard(cli, folder, tmp_path):
    answer = cli("site", "export", A, "--ledger", folder, "-o", tmp_path / "a.json")
    assert answer.code == 2
    assert "not enrolled by a guard" in answer.err
    with Ledger.open(tmp_path / "empty", cap=1.0, create=True):
        pass
    assert "no studies yet" in cli("site", "export", "a", "--ledger", tmp_path / "empty", "-o", tmp_path / "a").err


def test_a_report_cannot_overwrite_the_ledger(cli, enrolled):
    answer = cli("site", "export", STUDY.hash, "--ledger", enrolled, "-o", enrolled / DATABASE)
    assert answer.code == 2
    assert "another name" in answer.err
    cli("site", "budget", "--ledger", enrolled).succeeded()


def test_the_delta_is_the_owner_s(cli, folder):
    said = " ".join(cli("site", "budget", "--ledger", folder).succeeded().out.split())
    assert "δ = 1e-05. ε is exact." in said
    site = folder.parent / "site.toml"
    site.write_text(
        'format = "dpadmm-site/2"\nledger = "ledger"\n[data]\ntable = "t.csv"\n[person]\nrows = 1\n[limits]\n'
        'epsilon = 1.0\ndelta = 1e-7\nmethods = ["dp_admm"]\nlosses = ["logistic"]\n'
        "max_rounds = 9\nmin_rows = 9\n"
    )
    for here in (site, site.parent):
        said = " ".join(cli("site", "budget", "--site", here).succeeded().out.split())
        assert "δ = 1e-07. ε is exact." in said
    assert cli("site", "budget", "--site", site, "--json").succeeded().json["delta"] == 1e-7
    assert cli("site", "budget", "--site", site, "--delta", "1e-3", "--json").succeeded().json["delta"] == 1e-3


def test_what_rounding_leaves_is_nothing(cli, tmp_path):
    third = 1.0 / 3.0
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        ledger.reserve(A, 1.0 - 2.0**-50, about={})
        for round in (1, 2, 3):
            ledger.spend(A, round, digest="0" * 64, mu_squared=third - 2.0**-51, upload=b"")
    totals = cli("site", "budget", "--ledger", tmp_path, "--json").succeeded().json["totals"]
    nothing = {"mu_squared": 0.0, "epsilon": 0.0}
    assert totals["left"] == totals["reserved"] == nothing


def test_a_report_and_the_ledger_of_a_study_that_ended_early(cli, enrolled, tmp_path):
    assert "privacy report charges all planned rounds" not in " ".join(
        cli("site", "budget", "--ledger", enrolled).succeeded().out.split()
    )
    with Ledger.open(enrolled, cap=read_ledger(enrolled).cap) as ledger:
        ledger.close_study(study().hash)
    said = " ".join(cli("site", "budget", "--ledger", enrolled).succeeded().out.split())
    assert "Its privacy report charges all planned rounds" in said
    answer = cli("site", "export", study().hash, "--ledger", enrolled, "-o", tmp_path / "s.json").succeeded()
    assert "It charges all" in answer.out
    assert "released rounds, ε" in " ".join(answer.out.split())


def test_a_copy_is_made_and_restored_at_the_price_that_is_said(cli, tmp_path):
    write_rows(tmp_path / "table.csv", seed=0)
    first, second = (small_study(20, name=name, quorum=None, deadline=None) for name in ("first", "second"))
    site = new_site(tmp_path, first, table="table.csv", epsilon=9.0)
    here = ("--site", site.path)
    accept(site, first)
    made = cli("site", "backup", *here, "-o", tmp_path / "copy").succeeded()
    assert "as secret as the table" in made.out
    again = cli("site", "backup", *here, "-o", tmp_path / "copy")
    assert (again.code, "choose another name" in again.err) == (2, True)
    accept(site, second)
    refused = cli("site", "restore", tmp_path / "copy", *here)
    assert refused.code == 2
    assert "is intact, and no backup is newer" in refused.err
    assert "[ledger-exists]" in refused.err
    shutil.rmtree(site.ledger)
    both = cli("site", "restore", tmp_path / "copy", *here, "--none-since", "--accepted-since", tmp_path / "x.toml")
    assert (both.code, "--accepted-since and --none-since cannot be combined" in both.err) == (2, True)
    forgotten = cli("site", "restore", tmp_path / "copy", *here, "--none-since")
    assert (forgotten.code, "'second': accepted here, but not in the backup" in forgotten.err) == (2, True)
    (tmp_path / "second.toml").write_text(to_toml(second))
    done = cli("site", "restore", tmp_path / "copy", *here, "--accepted-since", tmp_path / "second.toml").succeeded()
    assert "first: charged in full and closed" in done.out
    said = " ".join(done.out.split())
    assert "the limit was at most ε 9.0000 at δ = 1e-05, and person.rows at most 1. These are the highest" in said
    assert "all other sites" not in said
    shown = json.loads(cli("site", "budget", "--ledger", site.ledger, "--json").succeeded().out)
    assert [each["state"] for each in shown["studies"]] == ["charged", "charged"]
    assert shown["studies"][1]["about"] == {"name": "possible releases since the backup of the ledger"}
    cli("site", "budget", "--ledger", site.ledger).succeeded()
    nothing = cli("site", "restore", *here).succeeded()
    assert "Left for new studies: ε 0.0000" in " ".join(nothing.out.split())
    text = site.path.read_text().replace("epsilon = 9.0", "epsilon = 12.0").replace("rows = 1\n", "rows = 3\n", 1)
    site.path.write_text(text + SECURE_AGGREGATION.format(epsilon=20.0))
    cli("site", "restore", *here).succeeded()
    site.path.write_text(
        site.path.read_text().replace("epsilon = 12.0", "epsilon = 9.0").replace("rows = 3", "rows = 1")
    )
    said = " ".join(cli("site", "restore", *here).succeeded().out.split())
    assert "at most ε 12.0000 (ε 20.0000 if all other sites collude) at δ" in said
    assert "person.rows at most 3." in said
