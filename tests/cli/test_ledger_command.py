"""``dpadmm ledger``: what the owner reads, beside a running agent, and when something is wrong."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.ledger import DATABASE, MARK, Ledger

A, B = "a1" * 32, "b2" * 32


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "ledger"
    with Ledger.open(folder, cap=4.0, create=True) as ledger:
        ledger.reserve(
            A, 1.0, about={"name": "a study of [red] herrings with a rather long name, over hospitals"}
        )
        for round in (1, 2):
            ledger.spend(A, round, digest="0" * 64, mu_squared=0.25, upload=b"secret bytes")
        ledger.reserve(B, 1.0, about={})
        ledger.spend(B, 1, digest="0" * 64, mu_squared=0.25, upload=b"secret bytes")
        ledger.close_study(B)
    return folder


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_help_fits_the_screen(cli, command):
    text = cli("ledger", command, "--help").succeeded().out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_show_says_what_is_spent_reserved_and_left(cli, folder):
    answer = cli("ledger", "show", folder).succeeded()
    lines = answer.out.splitlines()
    assert max(len(line) for line in lines if str(folder) not in line) <= 80
    rows = {line.rsplit(maxsplit=2)[0].strip(): line.split()[-2:] for line in lines if len(line.split()) > 2}
    for words, mu_squared in (
        ("released so far", 0.75),
        ("reserved by open studies, not yet released", 0.5),
        ("both: when all studies have ended", 1.25),
        ("left for new studies", 2.75),
        ("the owner's limit", 4.0),
    ):
        shown_mu, shown_epsilon = map(float, rows[words])
        epsilon = exact_epsilon(mu_squared**0.5, 1e-5)
        assert shown_mu == mu_squared
        assert epsilon <= shown_epsilon * (1 + 1e-9) <= epsilon + 1.1e-4  # never understated
    assert "open" in answer.out
    assert "closed" in answer.out
    assert "[red]" in answer.out
    assert "…" not in answer.out


def test_show_as_json_at_another_delta(cli, folder):
    answer = cli("ledger", "show", folder, "--delta", "1e-3", "--json").succeeded().json
    assert answer["totals"]["spent"] == {"mu_squared": 0.75, "epsilon": exact_epsilon(0.75**0.5, 1e-3)}
    assert [study["state"] for study in answer["studies"]] == ["open", "closed"]
    assert [study["releases"] for study in answer["studies"]] == [2, 1]


def test_verify(cli, folder):
    answer = cli("ledger", "verify", folder).succeeded()
    assert "7 records, 2 studies" in answer.out.replace("\n", " ")
    shown = cli("ledger", "show", folder).succeeded().out
    assert answer.out.split()[-1] == shown.split()[-1]


def test_an_exported_ledger_can_be_checked_by_anyone(cli, folder, tmp_path):
    cli("ledger", "export", folder, "-o", tmp_path / "out" / "ledger.json").succeeded()
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
        cli("ledger", "verify", folder).succeeded()
        assert (
            cli("ledger", "show", folder, "--json").succeeded().json["totals"]["spent"]["mu_squared"] == 1.0
        )
        cli("ledger", "export", folder, "-o", tmp_path / "ledger.json").succeeded()
        ledger.spend(A, 4, digest="0" * 64, mu_squared=0.25, upload=b"")
        ledger.verify()


@pytest.mark.parametrize("command", ["show", "verify"])
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
def test_a_ledger_that_cannot_be_trusted_is_one_sentence(cli, folder, command, harm, complaint):
    harm(folder)
    answer = cli("ledger", command, folder)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("dpadmm: ")
    assert answer.err.count("\n") == 1
    assert complaint in answer.err


@pytest.mark.parametrize("name", [MARK, DATABASE])
def test_an_export_cannot_overwrite_the_ledger(cli, folder, name):
    answer = cli("ledger", "export", folder, "-o", folder / name)
    assert answer.code == 2
    assert "another name" in answer.err
    cli("ledger", "verify", folder).succeeded()


@pytest.mark.parametrize("delta", ["0", "1", "nan", "-1"])
def test_delta_is_between_0_and_1(cli, folder, delta):
    answer = cli("ledger", "show", folder, "--delta", delta)
    assert answer.code == 2
    assert "delta" in answer.err
