"""``dpadmm verify``: privacy reports of a real guard and of simulated runs, and wrong ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from guards import POLICY, STUDY, Z, consensus, guarded, study
from reports import agent_releases, counts, study_report

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.report import SIMULATED, AgentReleases, canonical
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.trusted.unit import PrivacyUnit


@pytest.fixture
def site(tmp_path):
    """A ledger in which a guard has answered five rounds of one study."""
    folder = tmp_path / "ledger"
    with guarded(folder, policy=replace(POLICY, unit=PrivacyUnit(2), epsilon=4.0)) as guard:
        guard.enrol(STUDY)
        for round in range(1, 6):
            guard.answer(STUDY.hash, round, consensus(round))
    return folder


@pytest.fixture
def file(cli, site, tmp_path):
    path = tmp_path / "report.json"
    cli("site", "export", STUDY.name, "--ledger", site, "-o", path).succeeded()
    return path


def refused(answer, *words: str) -> None:
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("dpadmm: ")
    assert answer.err.count("\n") == 1
    for each in words:
        assert each in answer.err


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_help_fits_the_screen(cli):
    text = cli("verify", "--help").succeeded().out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


@pytest.mark.parametrize("columns", [80, 120])
def test_a_correct_report(cli, file, columns):
    text = cli("verify", file, columns=columns).succeeded().out
    assert max(len(line) for line in text.splitlines() if str(file) not in line) <= columns
    assert "…" not in text
    row = next(line for line in text.splitlines() if line.strip().startswith("this site"))
    shown = [float(number) for number in row.replace(" of ", " ").split()[2:]]
    epsilon = exact_epsilon(12**0.5 / Z, 1e-5)
    assert shown[:4] == [8, Z, 5, 12]
    assert shown[4:6] == [pytest.approx(epsilon, abs=1e-4)] * 2
    assert shown[6] == pytest.approx(epsilon, rel=2e-3)
    assert min(shown[4:]) >= epsilon  # a guarantee is not understated
    assert "a person with 2 rows" in text
    assert "All values are correct" in text
    assert "Guarantee: If the agents added this noise" in one_line(text)
    assert "simulated" not in text


def test_as_json(cli, file, site):
    answer = cli("verify", file, "--ledger", site, "--json").succeeded().json
    assert answer["correct"] is True
    assert answer["noise"] == "exact-discrete-gaussian"
    assert answer["study"]["hash"] == STUDY.hash
    (agent,) = answer["agents"]
    for check in agent["checks"]:
        epsilon = exact_epsilon(check["n_rows"] * agent["mu"], check["delta"])
        assert check["stated"] == check["closed_form"] == pytest.approx(epsilon, rel=1e-9)
        assert check["pld"] == pytest.approx(epsilon, rel=2e-3)
    assert answer["ledger"]["released"] == 5
    assert answer["ledger"]["charged"] == 12


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_value_is_one_sentence(cli, file, factor):
    document = json.loads(file.read_bytes())
    true = document["epsilon_by_delta"]["0.001"]
    document["epsilon_by_delta"]["0.001"] *= factor
    file.write_bytes(canonical(document))
    refused(cli("verify", file), "epsilon_by_delta.0.001", repr(true), repr(true * factor))
    refused(cli("verify", file, "--json"), "epsilon_by_delta.0.001")


@pytest.mark.parametrize("name", ["study", "hash", "method", "version", "agent", "n_rows", "statistic", "released"])
def test_values_that_cannot_be_recomputed_are_taken_on_trust(cli, file, site, name):
    """No ε depends on these values. The owner can compare them with the ledger, except version and name."""
    document = json.loads(file.read_bytes())
    (agent,) = document["agents"]
    match name:
        case "study":
            document["study"]["name"] = "another"
        case "hash":
            document["study"]["hash"] = "ab" * 32
        case "method":
            document["method"] = "another"
        case "version":
            document["dpadmm_version"] = "9.9.9"
        case "agent":
            agent["n_rows"] = {"another": agent["n_rows"].popitem()[1]}
        case "n_rows":
            agent["n_rows"] = {"this site": 9}
        case _:
            agent["releases"][0][name] = {"statistic": "another", "released": 6}[name]
    file.write_bytes(canonical(document))
    text = one_line(cli("verify", file).succeeded().out)
    assert "the study hash cannot be recomputed and are taken on trust from the signer" in text
    if name in ("version", "agent"):
        cli("verify", file, "--ledger", site).succeeded()
    else:
        refused(cli("verify", file, "--ledger", site), "ledger")


@pytest.mark.parametrize(
    "name", ["noise_multiplier", "charged", "rows_per_person", "delta", "min_honest_sites", "noise"]
)
def test_inputs_cannot_change_without_the_derived_values(cli, file, name):
    document = json.loads(file.read_bytes())
    (agent,) = document["agents"]
    match name:
        case "delta":
            document["delta"] = 1e-6
        case "min_honest_sites":
            document["min_honest_sites"] = 3
        case "noise":
            document["noise"] = SIMULATED
        case "rows_per_person":
            agent[name] = 1
        case _:
            agent["releases"][0][name] *= 2
    file.write_bytes(canonical(document))
    refused(cli("verify", file), "report.json")


def test_a_simulated_run_has_no_guarantee(cli, tmp_path):
    words = [
        "simulate",
        "--data",
        "synthetic",
        "--n-agents",
        "4",
        "--epsilon",
        "1",
        "--n-rounds",
        "3",
        "--repeats",
        "2",
        "-o",
    ]
    cli(*words, tmp_path / "run").succeeded()
    for run in "12":
        path = tmp_path / "run" / f"model-{run}.privacy.json"
        answer = cli("verify", path).succeeded()
        assert "an experiment without privacy" in one_line(answer.out)
        assert "4 agents" in answer.out
        found = cli("verify", path, "--json").succeeded().json
        assert found["noise"] == SIMULATED
        report = json.loads((tmp_path / "run" / "summary.json").read_text())["runs"][run]["privacy"]
        assert json.loads(path.read_bytes()) == report
        refused(cli("verify", path, "--ledger", tmp_path), "simulated run")


def test_many_groups_and_strange_names_fit_the_screen(cli, tmp_path):
    agents, names = list[AgentReleases](), list[str]()
    for i in range(20):
        releases = agent_releases(counts(1e7 + i, 10**5, 0, "mean gradient"), k=10**6)
        agents += [releases] * 2
        names += [f"{i} {'städtisch' * 9}", f"{i} {'städtisch' * 9}'s"]
    agents.append(agent_releases(counts(4e5, 10**5, 0, "mean gradient"), k=10**6))
    names.append(f"[red]{'städtisch' * 9}")
    made = study_report(*agents, names=names, n_rows=[10**9] * 41, delta=1e-9, study="[b]bold")
    (tmp_path / "many.json").write_bytes(made.to_bytes())
    answer = cli("verify", tmp_path / "many.json").succeeded()
    assert "and 9 more groups" in answer.out
    assert "[red]" in answer.out
    assert "[b]bold" in answer.out
    assert "…" not in answer.out
    assert max(len(line) for line in answer.out.splitlines() if "many.json" not in line) <= 80


def test_the_ledger_agrees_and_other_studies_are_counted(cli, site, file):
    text = one_line(cli("verify", file, "--ledger", site).succeeded().out)
    assert "The ledger agrees: 5 of 12 rounds released" in text
    assert "other studies, which are not included" not in text
    with guarded(site, policy=replace(POLICY, unit=PrivacyUnit(2), epsilon=4.0)) as guard:
        guard.enrol(STUDY)
        guard.answer(STUDY.hash, 6, consensus(6))
        guard.enrol(study(n_rounds=3))
    text = one_line(cli("verify", file, "--ledger", site).succeeded().out)
    assert "6 of 12 rounds" in text
    assert "Other studies in the ledger, not included: 1." in text


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("noise_multiplier", lambda z: 2 * z, "noise_multiplier [40.0], the ledger [20.0]"),
        ("charged", lambda n: n - 1, "charged 11, the ledger 12"),
        ("released", lambda n: n + 1, "5 releases, but the privacy report has 6"),
    ],
)
def test_a_report_that_contradicts_the_ledger(cli, site, file, name, change, words):
    report = read_privacy_report(file)
    ((_, z, made),) = report.groups[0].gaussian_counts
    made = (
        replace(made, release=replace(made.release, noise_multiplier=change(z)))
        if "noise" in name
        else replace(made, **{name: change(getattr(made, name))})
    )
    file.write_bytes(replace(report, agents=[AgentReleases((made,), 2)]).to_bytes())
    cli("verify", file).succeeded()
    refused(cli("verify", file, "--ledger", site), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: replace(s, study_hash="cd" * 32), "has no study cdcd"),
        (lambda s: replace(s, delta=1e-6), "delta 1e-06, the ledger 1e-05"),
        (lambda s: replace(s, agents=[replace(s.groups[0], rows_per_person=1)]), "rows_per_person 1"),
        (lambda s: replace(s, n_rows=[9]), "n_rows 9, the ledger 8"),
        (
            lambda s: replace(s, agents=[*s.agents] * 2, n_rows=[9, 10], names=["a", "b"]),
            "none of its agents matches",
        ),
    ],
)
def test_other_terms_than_the_ledgers(cli, site, file, change, words):
    file.write_bytes(change(read_privacy_report(file)).to_bytes())
    refused(cli("verify", file, "--ledger", site), words)


def test_missing_files_and_folders(cli, file, tmp_path):
    refused(cli("verify", tmp_path / "none.json"), "none.json: there is no such file")
    refused(cli("verify", file, "--ledger", tmp_path / "nowhere"), "no ledger")
