"""``dpadmm site``: from an empty folder to an accepted study, and every refusal on the way."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from looping import case

from dpadmm.accounting import exact_epsilon
from dpadmm.federation.site.decisions import decide
from dpadmm.rendering.formats import rounded_up
from dpadmm.sites import table as site_table
from dpadmm.sites.site import read_site
from dpadmm.studies.reading import read_study
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.masking import public_key

STUDY = """
format = "dpadmm-study/2"
name = "repayment of [red]loans[/red]"
features = ["income", "age"]
classes = ["no", "yes"]
[method]
name = "dp_admm"
[training]
n_rounds = 20
[privacy]
epsilon = 0.3
delta = 1e-6
"""

MASKED = "allow_missed_rounds = true\nquorum = 5\nmax_rows_per_site = 10\n[method]"


@pytest.fixture
def site_file(cli, tmp_path):
    """A site after ``init``, filled in: 7 rows, one person has three of them."""
    cli("site", "join", "--manual", "ward", "--site", tmp_path / "site").succeeded()
    path = tmp_path / "site" / "site.toml"
    changes = {
        '# column = "patient"': 'column = "who"',
        "# rows = 1": "rows = 2",
        '"outcome"': '"repaid"',
        "min_rows = 100": "min_rows = 5",
        "delta = 1e-5": "delta = 1e-6",
    }
    for old, new in changes.items():
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    rows = [f"note {k},0.{k + 1},{who},0.5,{'no' if k % 2 else 'yes'}" for k, who in enumerate("abacdae")]
    (path.parent / "table.csv").write_text("note,income,who,age,repaid\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def begun(cli, site_file):
    read_site(site_file).begin()
    return site_file


def text_of(answer):
    return " ".join(answer.out.split())


COMMANDS = (
    *("join", "check", "studies", "review", "accept", "decline", "leave", "run", "status", "install"),
    *("budget", "export", "backup", "restore"),
)


def test_help_fits_the_screen(cli):
    for words, columns in product([[], *([name] for name in COMMANDS)], [80, 120]):
        with case(words, columns):
            text = cli("site", *words, "--help", columns=columns).succeeded().out
            assert max(map(len, text.splitlines())) <= columns
            assert "…" not in text
            assert words or all(name in text for name in COMMANDS)


def request(cli, site, name="ward"):
    return cli("site", "join", "--manual", name, "--site", site)


def test_joining_writes_a_file_that_asks_for_decisions(cli, tmp_path):
    folder, file = tmp_path / "here", tmp_path / "here" / "site.toml"
    answer = request(cli, folder).succeeded()
    assert "Fill it in" in answer.out
    assert f"dpadmm site join --manual ward --site {file}" in answer.out
    assert folder.stat().st_mode & 0o777 == 0o700
    before = file.read_bytes()
    for undecided in (cli("site", "check", "--site", folder), request(cli, folder)):
        assert undecided.code == 2
        assert "person.rows is missing" in undecided.err
    assert file.read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["site.toml"]


@pytest.mark.parametrize("words", [(), ("--manual", "a", "--invitation", "b.json")])
def test_joining_takes_one_step_at_a_time(cli, words):
    answer = cli("site", "join", *words)
    assert answer.code == 2
    assert "give one of: the join token" in answer.err


def test_a_request_creates_ledger_and_key_once(cli, site_file, study_file):
    first = request(cli, site_file).succeeded()
    assert f"Created: {site_file.parent / 'ledger'}" in first.out
    assert "7 rows of 5 persons; 6 rows are used." in text_of(first)
    cli("site", "accept", study_file, "--site", site_file).succeeded()
    fingerprint, key = read_ledger(site_file.parent / "ledger").fingerprint, site_file.parent / "network" / "key.pem"
    before = key.read_bytes()
    again = request(cli, site_file).succeeded()
    assert "Created" not in again.out
    assert (read_ledger(site_file.parent / "ledger").fingerprint, key.read_bytes()) == (fingerprint, before)


@pytest.mark.parametrize("kept", ["network", "studies"])
def test_a_site_that_lost_its_ledger_gets_no_new_one(cli, site_file, study_file, kept):
    """A new ledger would forget the spent budget."""
    request(cli, site_file).succeeded()
    cli("site", "accept", study_file, "--site", site_file).succeeded()
    for lost in {"ledger", "network", "studies"} - {kept}:
        shutil.rmtree(site_file.parent / lost)
    answer = request(cli, site_file)
    assert answer.code == 2
    assert "dpadmm site restore" in answer.err
    assert answer.err.endswith("[ledger-missing]\n")
    assert not (site_file.parent / "ledger").exists()


def test_a_mistake_in_the_table_creates_nothing(cli, site_file):
    (site_file.parent / "table.csv").unlink()
    answer = request(cli, site_file)
    assert answer.code == 2
    assert "table.csv" in answer.err
    assert answer.err.count("\n") == 1
    assert [path.name for path in site_file.parent.iterdir()] == ["site.toml"]


def test_install_writes_a_systemd_unit(cli, site_file, monkeypatch):
    monkeypatch.chdir(site_file.parent)
    answer = cli("site", "install", "--user", "ward").succeeded()
    assert "sudo systemctl enable --now dpadmm-site" in answer.out
    unit = (site_file.parent / "dpadmm-site.service").read_text()
    assert "User=ward\n" in unit
    assert f"site run --site {site_file} --quiet\n" in unit
    assert f"ReadWritePaths={site_file.parent}\n" in unit
    again = cli("site", "install")
    assert (again.code, "already exists" in again.err) == (2, True)


def test_studies_lists_every_decision(cli, begun, study_file, tmp_path):
    assert "No studies yet." in cli("site", "studies", "--site", begun).succeeded().out
    cli("site", "accept", study_file, "--site", begun).succeeded()
    other = tmp_path / "other.toml"
    other.write_text(STUDY.replace("repayment", "another"))
    cli("site", "decline", other, "--site", begun).succeeded()
    play_rounds(begun, study_file, 3)
    studies = cli("site", "studies", "--site", begun, "--json").succeeded().json["studies"]
    listed = {each["hash"]: (each["state"], each["rounds"], each["of"]) for each in studies}
    assert listed == {read_study(study_file).hash: ("active", 3, 20), read_study(other).hash: ("declined", None, 20)}
    shown = cli("site", "studies", "--site", begun).succeeded().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "[red]" in shown


@pytest.mark.parametrize("columns", [80, 120])
def test_check_says_what_the_owner_has_and_allows(cli, site_file, columns):
    answer = cli("site", "check", "--site", site_file, columns=columns).succeeded()
    lines = [line for line in answer.out.splitlines() if str(site_file.parent) not in line]
    assert max(map(len, lines)) <= columns
    said = text_of(answer)
    assert "7 rows of 5 persons; 6 rows are used." in said
    assert "The other rows are replaced with zeros: 1 person has more than 2 rows." in said
    assert "ε 1 at δ = 1e-06 for each person (2 rows), over all studies" in said
    assert "at most 1,000 rounds" in said
    assert "at least 5 rows" in said
    assert "The ledger is not created yet." in said
    assert not (site_file.parent / "ledger").exists()
    read_site(site_file).begin()
    assert "0 studies, 0 open; ε 0.0000 spent" in text_of(cli("site", "check", "--site", site_file).succeeded())


def test_check_as_json(cli, site_file):
    answer = cli("site", "check", "--site", site_file, "--json").succeeded().json
    assert (answer["rows"], answer["rows_used"], answer["persons"], answer["persons_with_more"]) == (
        7,
        6,
        5,
        1,
    )
    assert answer["limits"]["rows_per_person"] == 2
    assert answer["spent"] is None
    assert answer["left"]["mu_squared"] == read_site(site_file).policy.cap


def test_check_without_a_person_column(cli, site_file):
    site_file.write_text(site_file.read_text().replace('column = "who"', ""))
    assert "7 rows, all used. You guarantee that no person has more than 2 rows." in text_of(
        cli("site", "check", "--site", site_file).succeeded()
    )


@pytest.mark.parametrize("entry", ["table.csv", "ledger"])
def test_a_path_in_the_home_of_nobody_is_one_sentence(cli, site_file, entry):
    site_file.write_text(site_file.read_text().replace(f'"{entry}"', f'"~nosuchuser/{entry}"'))
    answer = cli("site", "check", "--site", site_file)
    assert answer.code == 2
    assert f"the path '~nosuchuser/{entry}' begins with '~nosuchuser'" in answer.err
    assert answer.err.count("\n") == 1


def test_check_tells_what_an_owner_may_have_overlooked(cli, site_file):
    text = site_file.read_text().replace("min_rows = 5", "min_rows = 70")
    site_file.write_text(text)
    os.chmod(site_file, 0o666)
    answer = cli("site", "check", "--site", site_file).succeeded()
    assert "fewer than your min_rows = 70; any study is refused." in text_of(answer)
    assert answer.err.startswith("dpadmm: warning: everyone on this machine may write to")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_review_says_what_it_costs_and_changes_nothing(cli, begun, study_file, columns):
    before = {path: path.read_bytes() for path in begun.parent.rglob("*") if path.is_file()}
    answer = cli("site", "review", study_file, "--site", begun, columns=columns).succeeded()
    assert {path: path.read_bytes() for path in begun.parent.rglob("*") if path.is_file()} == before
    assert max(map(len, answer.out.splitlines())) <= columns
    study, policy = read_study(study_file), read_site(begun).policy
    cost = exact_epsilon((20 * (2 / study.noise_multiplier) ** 2) ** 0.5, policy.delta)
    cells = next(line.split() for line in answer.out.splitlines() if line.strip().startswith("total ε"))
    assert cost <= float(cells[6]) <= cost + 1e-4
    assert cells[7:] == ["1.0000", "1.0000", "yes"]
    assert "[red]loans[/red]" in answer.out
    assert study.hash in answer.out
    assert "Within your limits" in answer.out
    assert "…" not in answer.out


def test_review_says_who_takes_part_and_of_whom_to_be_sure(cli, begun, study_file):
    begun.write_text(begun.read_text().replace("allow = false", "allow = true"))
    keys = {"clinic": read_site(begun).make_key()} | {
        name: public_key(sha256(name.encode()).digest()) for name in "bcdef"
    }
    roster = "".join(f'[[roster]]\nname = "{name}"\nkey = "{key.hex()}"\n' for name, key in keys.items())
    text = STUDY.replace('name = "dp_admm"', 'name = "auto"').replace("[method]", MASKED)
    study_file.write_text(f'{text}aggregation = "secure"\nmin_honest_sites = 3\n{roster}')
    answer = text_of(cli("site", "review", study_file, "--site", begun).succeeded())
    assert "Sites: clinic (you), b, c, d, e, f." in answer
    # All but 5 of 6 are in a sum, and 3 of them are to be honest: of 4 one has to be sure, oneself included
    assert "at most 2 of these 6 sites collude with the server" in answer
    assert "at least 3 other owners whom you trust" in answer
    assert "if all other sites collude, ε" in answer


def test_review_as_json(cli, begun, study_file):
    answer = cli("site", "review", study_file, "--site", begun, "--json").succeeded().json
    assert (answer["acceptable"], answer["refusal"], answer["accepted"], answer["rows"]) == (
        True,
        None,
        False,
        7,
    )
    limits = {line["limit"]: line for line in answer["limits"]}
    assert limits["rounds"] == {"limit": "rounds", "asked": 20, "allowed": 1000, "left": None, "holds": True}
    z, cap = read_study(study_file).noise_multiplier, read_site(begun).policy.cap
    amounts = limits["mu_squared"]
    assert amounts["asked"] == pytest.approx(20 * (2 / z) ** 2)
    assert (amounts["allowed"], amounts["left"]) == (cap, cap)


def test_a_masked_study_is_shown_with_both_epsilons(cli, begun, study_file):
    """What it costs if enough sites are honest, and if all others work together; in all that an owner reads."""
    keys = [read_site(begun).make_key(), *(public_key(bytes([k] * 32)) for k in (1, 2))]
    roster = "".join(f'[[roster]]\nname = "s{k}"\nkey = "{key.hex()}"\n' for k, key in enumerate(keys))
    masked = STUDY.replace('"dp_admm"', '"auto"').replace(
        "epsilon = 0.3", "epsilon = 0.3\naggregation = 'secure'\nmin_honest_sites = 2"
    )
    study_file.write_text(masked.replace("features =", "max_rows_per_site = 50\nfeatures =") + roster)
    refused = cli("site", "review", study_file, "--site", begun)
    assert (refused.code, refused.err.split()[-1]) == (2, "[policy-aggregation]")
    begun.write_text(begun.read_text().replace("allow = false", "allow = true"))
    mu = 2 * float(read_study(study_file).terms.plan.mu_squared()) ** 0.5
    epsilon, alone = (rounded_up(exact_epsilon(each, 1e-6)) for each in (mu, 2**0.5 * mu))
    review = cli("site", "review", study_file, "--site", begun).succeeded()
    words = f"ε {epsilon} at your δ = 1e-06 if at least 2 of the sites in a round are honest; if all"
    assert f"{words} other sites collude, ε {alone}. Σμ²" in text_of(review)
    assert max(len(line) for line in review.out.splitlines()) <= 80
    told = cli("site", "review", study_file, "--site", begun, "--json").succeeded().json["limits"]
    limits = {line["limit"]: (line["asked"], line["allowed"]) for line in told}
    assert (limits["min_honest_sites"], limits["withstood"]) == ((2, 2), (1, 1))
    assert limits["mu_squared_if_others_collude"][0] == 2 * limits["mu_squared"][0]
    assert limits["epsilon_if_others_collude"][1] == pytest.approx(2.0)
    compared = ("--hash", read_study(study_file).hash)
    enrolled = text_of(cli("site", "accept", study_file, "--site", begun, *compared).succeeded())
    assert f"Reserved: ε {epsilon} ({alone} if all other sites collude) of 1.0000" in enrolled
    checked = text_of(cli("site", "check", "--site", begun).succeeded())
    assert f"If all other sites collude, ε 0.0000 is spent, {alone} spent or reserved." in checked
    assert "Secure aggregation: allowed, up to ε 2 at δ = 1e-06 if all other sites collude" in checked
    figures = cli("site", "check", "--site", begun, "--json").succeeded().json
    assert figures["limits"]["secure_aggregation"] == {
        "epsilon_if_others_collude": 2.0,
        "min_honest_sites": 2,
        "min_withstood": 1,
    }
    assert figures["collusion_promised"]["mu_squared"] == 2 * figures["promised"]["mu_squared"]
    left = text_of(cli("site", "leave", study_file, "--site", begun).succeeded())
    assert "Charged: ε 0.0000 (0.0000 if all other sites collude)" in left


REFUSED = {
    "policy-method": ("site", '"dp_admm", "dp_sgd"', '"dp_sgd"', "method"),
    "policy-loss": ("site", '"logistic", ', "", "loss"),
    "policy-rounds": ("site", "max_rounds = 1000", "max_rounds = 19", "rounds"),
    "policy-rows": ("site", "min_rows = 5", "min_rows = 8", "rows"),
    "budget-cap": ("study", "epsilon = 0.3", "epsilon = 0.9", "total"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_study_beyond_a_limit_is_refused_with_code_and_numbers(cli, begun, study_file, code):
    which, old, new, name = REFUSED[code]
    path = begun if which == "site" else study_file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    answer = cli("site", "review", study_file, "--site", begun)
    assert answer.code == 2
    assert answer.err.endswith(f"[{code}]\n")
    assert answer.err.count("\n") == 1
    verdicts = {line.split()[-1] for line in answer.out.splitlines() if line.strip().startswith(name) and line.split()}
    assert verdicts == {"no"}
    assert answer.out.split().count("no") == (2 if name == "total" else 1)
    told = cli("site", "review", study_file, "--site", begun, "--json")
    assert told.code == 2
    assert told.json["acceptable"] is False
    assert told.json["refusal"]["code"] == code
    refused = cli("site", "accept", study_file, "--site", begun)
    assert (refused.code, refused.out, refused.err) == (2, "", answer.err)
    assert not read_ledger(begun.parent / "ledger").accounts


def test_what_is_wrong_with_the_rows_is_told_to_the_owner(cli, begun, study_file):
    study_file.write_text(STUDY.replace('"age"', '"aeg"'))
    for verb in ("review", "accept"):
        answer = cli("site", verb, study_file, "--site", begun)
        assert answer.code == 2
        assert "has no column 'aeg': did you mean 'age'?" in answer.err
        assert answer.err.endswith("[study-unfit]\n")
        assert answer.err.count("\n") == 1


def test_enrol_reserves_and_again_is_harmless(cli, begun, study_file):
    answer = cli("site", "accept", study_file, "--site", begun).succeeded()
    study, site = read_study(study_file), read_site(begun)
    book = read_ledger(site.ledger)
    cost = 20 * (2 / study.noise_multiplier) ** 2
    assert book.accounts[study.hash].reservation.mu_squared == cost
    assert study.hash in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    told = cli("site", "accept", study_file, "--site", begun, "--json").succeeded().json
    assert told["rows"] == 7
    assert told["reserved"]["mu_squared"] == cost
    assert told["left"]["mu_squared"] == pytest.approx(site.policy.cap - cost)
    assert read_ledger(site.ledger).fingerprint == book.fingerprint
    amounts = cli("site", "review", study_file, "--site", begun, "--json").succeeded().json["limits"][-1]
    assert (amounts["asked"], amounts["left"], amounts["holds"]) == (cost, site.policy.cap, True)
    again = cli("site", "review", study_file, "--site", begun).succeeded()
    assert "0 of 20 rounds answered" in text_of(again)
    assert "1 study, 1 open" in text_of(cli("site", "check", "--site", begun).succeeded())


def test_a_second_study_sees_what_the_first_has_reserved(cli, begun, study_file):
    cli("site", "accept", study_file, "--site", begun).succeeded()
    cost = 20 * (2 / read_study(study_file).noise_multiplier) ** 2
    study_file.write_text(STUDY.replace("repayment", "more"))
    amounts = cli("site", "review", study_file, "--site", begun, "--json").succeeded().json["limits"][-1]
    assert amounts["left"] == pytest.approx(read_site(begun).policy.cap - cost)
    study_file.write_text(STUDY.replace("repayment", "more").replace("0.3", "0.4"))
    answer = cli("site", "review", study_file, "--site", begun)
    assert answer.code == 2
    assert answer.err.endswith("[budget-cap]\n")
    assert "left 0.74" in answer.err


def test_review_beside_a_running_agent(cli, begun, study_file):
    site = read_site(begun)
    with site.guard() as guard:
        guard.enrol(read_study(study_file))
        cli("site", "review", study_file, "--site", begun).succeeded()
        cli("site", "check", "--site", begun).succeeded()
        again = cli("site", "accept", study_file, "--site", begun).succeeded()
        assert text_of(again).startswith("Already accepted, nothing changed")


def test_a_table_that_changed_is_seen_before_the_study_goes_on(cli, begun, study_file):
    cli("site", "accept", study_file, "--site", begun).succeeded()
    table = begun.parent / "table.csv"
    table.write_text(table.read_text().replace("0.3,", "0.4,"))
    for verb in ("review", "accept"):
        answer = cli("site", verb, study_file, "--site", begun)
        assert answer.code == 2
        assert answer.err.endswith("[data-changed]\n")


def test_without_a_ledger_nothing_is_reviewed_or_enrolled(cli, site_file, study_file):
    for verb in ("review", "accept"):
        answer = cli("site", verb, study_file, "--site", site_file)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.endswith("[ledger-missing]\n")
    assert not (site_file.parent / "ledger").exists()


def test_the_site_here_needs_no_naming(cli, begun, study_file, monkeypatch):
    monkeypatch.chdir(begun.parent)
    cli("site", "review", study_file).succeeded()
    cli("site", "accept", study_file).succeeded()


@pytest.mark.parametrize("words", [["check"], ["join", "--manual", "ward"], ["budget"], ["status"]], ids=" ".join)
def test_a_mistake_in_the_site_is_one_sentence(cli, site_file, words):
    site_file.write_text(site_file.read_text().replace("epsilon = 1.0", "epsilon = nan"))
    answer = cli("site", *words, "--site", site_file)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (f"dpadmm: {site_file}: limits.epsilon must be one number between 1e-06 and 100, not nan\n")


def test_leave_ends_a_study_and_frees_what_it_did_not_use(cli, begun, study_file):
    cli("site", "accept", study_file, "--site", begun).succeeded()
    answer = cli("site", "leave", "repayment of [red]loans[/red]", "--site", begun).succeeded()
    assert "after 0 rounds" in text_of(answer)
    assert "left for other studies: 1.0000" in text_of(answer)
    (account,) = read_ledger(begun.parent / "ledger").accounts.values()
    assert account.closed
    again = cli("site", "accept", study_file, "--site", begun)
    assert again.code == 2
    assert "[study-changed]" in again.err
    unknown = cli("site", "leave", "another", "--site", begun)
    assert unknown.code == 2


def test_rows_without_a_usable_id_are_told_to_the_owner(cli, begun, study_file):
    with (begun.parent / "table.csv").open("a") as file:
        file.write("x,0.1,,0.5,no\nx,0.1,A,0.5,no\n")
    assert "For the owner only: 1 row has no id, and 1 id is written in different ways" in text_of(
        cli("site", "accept", study_file, "--site", begun).succeeded()
    )
    said = text_of(cli("site", "check", "--site", begun).succeeded())
    assert "9 rows of 5 persons; 4 rows are used." in said
    assert "1 row has no id; 1 id is written in different ways (7 and 007)." in said


def test_rows_that_a_study_cannot_use_are_told_to_the_owner(cli, begun, study_file):
    table = begun.parent / "table.csv"
    table.write_text(table.read_text() + "x,much,f,0.5,perhaps\n")
    for verb in ("review", "accept"):
        answer = text_of(cli("site", verb, study_file, "--site", begun).succeeded())
        assert "For the owner only: 1 of 8 rows have an unknown label" in answer
        assert "of 8 cells missing in columns 'income' 1" in answer


TABLE_STUDY = """
format = "dpadmm-study/2"
name = "repayment"
[label]
column = "repaid"
classes = ["no", "yes"]
[columns.income]
kind = "number"
bounds = [0, 0.3]
[columns.note]
kind = "category"
values = ["note 1", "note 2"]
[columns.age]
kind = "number"
bounds = [0, 1]
[method]
name = "dp_admm"
[training]
n_rounds = 20
[privacy]
epsilon = 0.3
delta = 1e-6
"""


def test_check_counts_what_a_study_makes_of_the_cells(cli, site_file, study_file):
    study_file.write_text(TABLE_STUDY)
    answer = cli("site", "check", "--site", site_file, "--study", study_file).succeeded()
    assert max(len(line) for line in answer.out.splitlines() if str(site_file.parent) not in line) <= 80
    said = text_of(answer)
    assert "income 4 (57.1%) 0 0" in said
    assert "note 0 5 (71.4%) 0" in said
    assert "column 'income': 57% of the cells are beyond [0, 0.3] and clamped: other units?" in said
    cells = cli("site", "check", "--site", site_file, "--study", study_file, "--json").succeeded().json["cells"]
    assert cells["columns"]["income"] == {"clamped": 4, "unknown": 0, "missing": 0}
    assert cells["problems"] == []
    table = site_file.parent / "table.csv"
    table.write_text(table.read_text().replace(",yes", ",maybe").replace("0.5", "old"))
    said = text_of(cli("site", "check", "--site", site_file, "--study", study_file).succeeded())
    assert "the label 'repaid' is none of the classes no, yes in 4 rows (" in said
    assert "column 'age': the cells in 7 rows (1, 2, 3, …) should be numbers and are not" in said
    assert "old" not in said


def test_an_open_quotation_mark_is_told_to_the_owner_and_refuses_nothing(cli, begun, study_file):
    table = begun.parent / "table.csv"
    lines = [f"note {k},0.5,p{k},0.5,{'no' if k % 2 else 'yes'}" for k in range(20)]
    lines[12] = 'note 12,0.5,p12,0.5,"yes'
    table.write_text("note,income,who,age,repaid\n" + "\n".join(lines) + "\n")
    warned = "21 lines of the file make 13 rows: is a quotation mark open"
    assert warned in text_of(cli("site", "check", "--site", begun).succeeded())
    assert warned in " ".join(cli("site", "check", "--site", begun, "--json").succeeded().json["warnings"])
    assert warned in text_of(cli("site", "review", study_file, "--site", begun).succeeded())
    assert warned in text_of(cli("site", "accept", study_file, "--site", begun).succeeded())


def test_a_lowered_limit_that_breaks_a_promise_is_told(cli, begun, study_file):
    cli("site", "accept", study_file, "--site", begun).succeeded()
    begun.write_text(begun.read_text().replace("epsilon = 1.0", "epsilon = 0.1"))
    told = "your limit, ε 0.1000 at δ = 1e-06, is below what was promised"
    assert told in text_of(cli("site", "check", "--site", begun).succeeded())
    assert told in " ".join(cli("site", "check", "--site", begun, "--json").succeeded().json["warnings"])
    begun.write_text(begun.read_text().replace("epsilon = 0.1", "epsilon = 1.0"))
    assert "promised" not in text_of(cli("site", "check", "--site", begun).succeeded())


def test_enrolled_and_left_twice_say_so(cli, begun, study_file):
    assert text_of(cli("site", "accept", study_file, "--site", begun).succeeded()).startswith("Accepted: ")
    again = text_of(cli("site", "accept", study_file, "--site", begun).succeeded())
    assert again.startswith("Already accepted, nothing changed: repayment")
    left = text_of(cli("site", "leave", study_file, "--site", begun).succeeded())
    assert left.startswith("repayment of [red]loans[/red], after 0 rounds: Left. ")
    assert "privacy report charges all planned rounds" in left
    before = read_ledger(begun.parent / "ledger").fingerprint
    again = text_of(cli("site", "leave", study_file, "--site", begun).succeeded())
    assert again.startswith("repayment of [red]loans[/red], after 0 rounds: Left (already closed; nothing changed).")
    assert read_ledger(begun.parent / "ledger").fingerprint == before
    refused = cli("site", "accept", study_file, "--site", begun)
    assert refused.code == 2
    assert "this study was closed and cannot be reopened; give it another name" in refused.err


def test_a_missing_ledger_names_the_command_that_restores_it(cli, site_file, study_file):
    answer = cli("site", "review", study_file, "--site", site_file)
    assert answer.code == 2
    assert "dpadmm site restore" in answer.err


# Declining


def declined(cli, begun, study_file):
    answer = cli("site", "decline", study_file, "--site", begun).succeeded()
    return text_of(answer)


def decision(begun, study_file):
    path = begun.parent / "studies" / f"{read_study(study_file).hash}.json"
    return json.loads(path.read_text())["decision"] if path.exists() else None


def account(begun, study_file):
    return read_ledger(begun.parent / "ledger").accounts.get(read_study(study_file).hash)


def play_rounds(begun, study_file, n_rounds):
    study = read_study(study_file)
    with read_site(begun).guard() as guard:
        guard.enrol(study)
        for round in range(1, n_rounds + 1):
            guard.answer(study.hash, round, np.zeros(study.shape))


def test_declining_what_was_never_accepted_reserves_and_changes_nothing(cli, begun, study_file):
    before = read_ledger(begun.parent / "ledger").fingerprint
    assert declined(cli, begun, study_file).endswith("Declined, and recorded with the date. Nothing was reserved.")
    assert decision(begun, study_file) == "declined"
    kept = next((begun.parent / "studies").iterdir()).read_bytes()
    again = declined(cli, begun, study_file)
    assert again.endswith("Already declined, nothing changed. Nothing was reserved.")
    assert next((begun.parent / "studies").iterdir()).read_bytes() == kept
    assert read_ledger(begun.parent / "ledger").fingerprint == before


def test_who_declined_may_still_accept(cli, begun, study_file):
    declined(cli, begun, study_file)
    cli("site", "accept", study_file, "--site", begun).succeeded()
    assert decision(begun, study_file) == "accepted"
    assert not account(begun, study_file).closed


@pytest.mark.parametrize("n_rounds", [0, 3])
@pytest.mark.parametrize("kept", ["accepted", "declined", None])
def test_declining_what_is_reserved_ends_it_and_says_so(cli, begun, study_file, kept, n_rounds):
    """Whatever the file of the decision says, or without one: the ledger is what counts."""
    whole = cli("site", "check", "--site", begun, "--json").succeeded().json["left"]
    cli("site", "accept", study_file, "--site", begun).succeeded()
    play_rounds(begun, study_file, n_rounds)
    if kept is None:
        next((begun.parent / "studies").iterdir()).unlink()  # as if the power failed before it was written
    elif kept == "declined":
        decide(begun.parent, read_study(study_file), "declined")
    assert not account(begun, study_file).closed
    told = declined(cli, begun, study_file)
    assert "Nothing was reserved" not in told
    assert "Declined, and left because it was accepted. The study gets no more answers" in told
    assert f"Answered: {n_rounds} rounds." in told
    assert ("Charged: ε 0.0000" in told) == (n_rounds == 0)
    ended = account(begun, study_file)
    assert ended.closed
    assert len(ended.rounds) == n_rounds
    assert decision(begun, study_file) == "left"
    left = cli("site", "check", "--site", begun, "--json").succeeded().json["left"]
    assert left["mu_squared"] == pytest.approx(whole["mu_squared"] - float(ended.spent), rel=1e-12)
    refused = cli("site", "accept", study_file, "--site", begun)
    assert refused.code == 2
    assert refused.err.endswith("[study-changed]\n")
    before = read_ledger(begun.parent / "ledger").fingerprint
    again = declined(cli, begun, study_file)
    assert "Left (already closed; nothing changed)" in again
    assert "Nothing was reserved" not in again
    assert read_ledger(begun.parent / "ledger").fingerprint == before
    assert decision(begun, study_file) == "left"


def test_an_acceptance_that_came_to_nothing_can_be_declined(cli, begun, study_file):
    """An agent that could not enrol it would, after its next start with other limits."""
    decide(begun.parent, read_study(study_file), "accepted")
    assert declined(cli, begun, study_file).endswith("Nothing was reserved.")
    assert decision(begun, study_file) == "declined"
    assert account(begun, study_file) is None


def test_declining_needs_no_table(cli, begun, study_file):
    cli("site", "accept", study_file, "--site", begun).succeeded()
    (begun.parent / "table.csv").unlink()
    begun.write_text(begun.read_text().replace("max_rounds = 1000", "max_rounds = 1"))
    assert "left because it was accepted" in declined(cli, begun, study_file)
    assert account(begun, study_file).closed


def test_a_decline_that_nobody_heeds_is_not_called_done(cli, begun, study_file, monkeypatch):
    """A process holds the ledger and does not look at decisions."""
    monkeypatch.setattr("dpadmm.federation.site.decisions.PROCESS_TIMEOUT", 0.3)
    cli("site", "accept", study_file, "--site", begun).succeeded()
    other = begun.parent.parent / "other.toml"
    other.write_text(STUDY.replace("repayment", "another"))
    decide(begun.parent, read_study(other), "accepted")
    with read_site(begun).guard():
        for file in (study_file, other):
            answer = cli("site", "decline", file, "--site", begun)
            assert answer.code == 2
            assert "did not apply it in time" in answer.err
            assert "eclined" not in answer.out
    assert decision(begun, study_file) == "left"
    assert not account(begun, study_file).closed
    assert "left because it was accepted" in declined(cli, begun, study_file)


@pytest.fixture
def encodings(monkeypatch):
    """Every table that is encoded, as long as the test runs."""
    encoded, real = [], site_table.encode_table
    monkeypatch.setattr(site_table, "encode_table", lambda *a, **k: encoded.append(a[0]) or real(*a, **k))
    return encoded


@pytest.mark.parametrize("command", ["review", "accept"])
def test_a_command_encodes_the_table_once(cli, begun, study_file, encodings, command):
    cli("site", command, study_file, "--site", begun).succeeded()
    assert encodings == [begun.parent / "table.csv"]
