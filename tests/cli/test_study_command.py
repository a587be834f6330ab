"""``dpadmm study``: drafts, checks, confirmation and description of studies."""

from __future__ import annotations

import json
import math
import re
from itertools import product

import pytest
from looping import case

from dpadmm.accounting import exact_epsilon, paper_epsilon
from dpadmm.studies.reading import read_study


@pytest.fixture
def study_file(cli, tmp_path):
    path = tmp_path / "study.toml"
    cli("study", "new", path).succeeded()
    return path


PLAIN = """
format = "dpadmm-study/2"
name = "Example: repayment of loans"
features = ["income", "age"]
classes = ["no", "yes"]
[loss]
name = "logistic"      # and more
[privacy]
epsilon = 1.0
"""


@pytest.fixture
def plain_file(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text(PLAIN)
    return path


def test_help_fits_the_screen(cli):
    for words, columns in product([[], ["new"], ["show"], ["check"], ["confirm"], ["schema"]], [80, 120]):
        with case(words, columns):
            text = cli("study", *words, "--help", columns=columns).succeeded().out
            assert max(map(len, text.splitlines())) <= columns
            assert "…" not in text


def test_the_example_is_a_study_and_is_not_overwritten(cli, study_file):
    study_file.write_text(study_file.read_text().replace("[training]", "[training]\nn_rounds = 30"))
    answer = cli("study", "new", study_file)
    assert answer.code == 2
    assert "exists" in answer.err
    assert read_study(study_file).training.n_rounds == 30


@pytest.mark.parametrize("columns", [80, 120])
def test_show_describes_the_study(cli, study_file, columns):
    study = read_study(study_file)
    text = cli("study", "show", study_file, columns=columns).succeeded().out
    assert max(map(len, text.splitlines())) <= columns
    assert study.hash in text
    cells = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    cells = {name: value.strip() for name, value in cells.items()}
    delta = study.training.delta
    assert cells["columns"] == "4, encoded as 8 features"
    assert cells["label"] == "repaid: no, yes"
    assert cells["row scaling"] == "1/√4 = 1/2"
    shown = " ".join(text.split())
    assert "income number 100 to 100,000, log 1" in shown
    assert "age number 18 to 100; missing indicator 2" in shown
    assert "purpose category car, house, education 4" in shown
    assert "employed boolean 1" in shown
    assert cells["method"] == "auto"
    assert cells["rounds"].startswith("chosen from rows and budget")
    assert "in round 1 (moments)" in cells["noise multiplier z"]
    assert float(cells["noise multiplier z"].split()[0]) == pytest.approx(study.noise_multiplier, abs=1e-4)
    exact = exact_epsilon(math.sqrt(study.terms.plan.mu_squared()), delta)
    assert exact <= float(cells["total ε, exact"]) <= exact + 1e-4
    assert "moments bound" not in text  # it is for equal rounds


def test_show_describes_the_cost_of_the_paper_s_method(cli, study_file):
    text = study_file.read_text().replace('"auto"', '"dp_admm"')
    study_file.write_text(text + 'method.weight_radius = "assumed"\n')
    study = read_study(study_file)
    z, t, delta = study.noise_multiplier, study.training.n_rounds, study.training.delta
    text = cli("study", "show", study_file).succeeded().out
    cells = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    assert cells["rounds"].strip() == "100"
    paper = paper_epsilon(z, t, delta)
    assert paper <= float(cells["total ε, paper's moments bound"]) <= paper + 1e-4
    assert "weight_radius: assumed" in text


def test_show_as_json(cli, study_file):
    study_file.write_text(study_file.read_text().replace('"auto"', '"dp_admm"'))
    study = read_study(study_file)
    answer = cli("study", "show", study_file, "--json").succeeded().json
    assert answer["hash"] == study.hash
    assert answer["study"] == study.as_json()
    assert answer["noise_multiplier"] == study.noise_multiplier
    assert answer["epsilon_exact"] < answer["epsilon_paper"]
    assert answer["mu_squared"] == pytest.approx(100 / study.noise_multiplier**2)


def test_many_columns_and_a_long_name_fit(cli, plain_file):
    names = ", ".join(f'"measurement number {k} of [bold]the[/wrong] patient"' for k in range(40))
    text = plain_file.read_text().replace('"income", "age"', names)
    plain_file.write_text(text.replace("Example: repayment", "[red]" + "very long " * 15))
    out = cli("study", "show", plain_file).succeeded().out
    assert max(map(len, out.splitlines())) <= 80
    assert "and 28 more" in " ".join(out.split())
    assert "[red]very" in out
    assert "[bold]the[/wrong]" in "".join(out.split())
    assert "…" not in out


def test_a_study_of_numbers(cli, plain_file):
    text = plain_file.read_text().replace('classes = ["no", "yes"]\n', "")
    assert "2: income, age" in " ".join(cli("study", "show", plain_file).succeeded().out.split())
    plain_file.write_text(text.replace('"logistic"      #', '"huber"  #'))
    assert "a number" in cli("study", "show", plain_file).succeeded().out
    plain_file.write_text(text)
    assert "-1, 1" in cli("study", "show", plain_file).succeeded().out


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"auto"', '"dp_admm"', ""),
        (
            "epsilon = 1.0 ",
            "epsilon = 1e9 ",
            "epsilon = 1e+09 in 25 rounds requires too little noise",
        ),
        ("epsilon = 1.0 ", "epsilon = nan ", "epsilon must be a positive number"),
        ("epsilon = 1.0 ", "epsilon = [1.0, 2.0] ", "epsilon must be a positive number"),
        ('"logistic"  ', '"logistik"  ', "did you mean 'logistic'"),
        ("intercept =", "rounds = 5\nintercept =", "did you mean 'n_rounds'"),
        ("[training]", "[trainings]", "did you mean 'training'"),
        ('["car", "house", "education"]', "[]", "values must be a list of 1 to"),
        ("format", "form at", "not valid TOML"),
    ],
)
def test_an_error_is_one_sentence(cli, study_file, old, new, complaint):
    assert old in study_file.read_text()
    study_file.write_text(study_file.read_text().replace(old, new, 1))
    answer = cli("study", "show", study_file)
    if not complaint:
        answer.succeeded()
        return
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"dpadmm: {study_file}")
    assert answer.err.count("\n") == 1
    assert complaint in answer.err


def test_a_missing_file(cli, tmp_path):
    answer = cli("study", "show", tmp_path / "none.toml")
    assert answer.code == 2
    assert "no such file" in answer.err


TABLE = "age,ward,note,repaid\n" + "".join(
    f"{20 + i % 50},{'AB'[i % 2]},text {i},{'yes' if i % 3 else 'no'}\n" for i in range(60)
)


@pytest.fixture
def table_file(tmp_path):
    path = tmp_path / "dummy.csv"
    path.write_text(TABLE)
    return path


def text_of(answer):
    return " ".join(answer.out.split())


def test_from_a_table_to_a_confirmed_study(cli, tmp_path, table_file):
    path = tmp_path / "drafted.toml"
    answer = cli("study", "new", path, "--from", table_file, "--label", "repaid").succeeded()
    assert "2 columns and the label 'repaid' from dummy.csv." in text_of(answer)
    assert "'note' (unique in every row" in text_of(answer)
    for verb in ("show", "check"):
        refused = cli("study", verb, path)
        assert refused.code == 2
        assert refused.err.count("\n") == 1
    shown = cli("study", "show", path).err
    assert "label 'repaid', column 'age', column 'ward'" in shown
    assert "nor are the public rows (dummy.csv)" in shown
    waiting = cli("study", "check", path)
    assert waiting.out == ""
    groups = "the label, 1 number, 1 category, the public rows"
    assert f"4 unconfirmed values ({groups}) (dpadmm study confirm {path})" in waiting.err
    found = cli("study", "check", path, "--json").json
    names = ["repaid", "age", "ward", "dummy.csv"]
    assert (found["problems"], [each["name"] for each in found["to_confirm"]]) == ([], names)
    before = path.read_bytes()
    listed = cli("study", "confirm", path).succeeded()
    assert "repaid (label) classes no, yes age bounds 20, 70, center 41, scale 15 ward values" in text_of(listed)
    assert path.read_bytes() == before
    assert "dummy.csv (public rows) all rows of the table" in text_of(listed)
    for words, left in [(["--numbers"], 3), (["ward"], 2), (["ward"], 2), (["--public-rows"], 1), (["--all"], 0)]:
        done = cli("study", "confirm", path, *words).succeeded()
        assert (f"{left} unconfirmed value" in text_of(done)) == bool(left)
        assert path.read_text().count("public = false") == left
    assert b"confirm: public?" not in path.read_bytes()
    assert path.read_bytes() == before.replace(b"public = false  # confirm: public?", b"public = true")
    assert "All values confirmed." in cli("study", "confirm", path).succeeded().out
    wrong = cli("study", "confirm", path, "wart")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "did you mean 'ward'" in wrong.err
    fine = cli("study", "check", path, "--data", table_file).succeeded()
    assert "60 rows" in fine.out
    assert "No clamped, unknown or missing cells in 2 columns and the label." in fine.out
    assert read_study(path).hash in fine.out
    shown = text_of(cli("study", "show", path).succeeded())
    assert re.search(r"public rows used for initialisation at no privacy cost .sha256 [0-9a-f]{12}….", shown)
    rows = table_file.read_text()
    table_file.write_text(rows.replace("no", "yes"))
    assert "public_rows /" in text_of(other := cli("study", "check", path))
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "public_rows: " in other.err  # a single problem is told there, too
    assert "dummy.csv: not the table that the study declares" in other.err
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("age,ward,repaid\n30,a,maybe\n")
    both = cli("study", "check", path, "--data", wrong)
    assert both.err.endswith("2 problems\n")
    assert "repaid none of the classes no, yes 1 1 'maybe'" in text_of(both)
    assert "No clamped, unknown or missing cells in 1 other column." in text_of(both)
    assert "public_rows /" in text_of(both)
    table_file.unlink()
    assert "Warning: the public rows are missing on this machine" in text_of(cli("study", "check", path).succeeded())
    table_file.write_text(rows)
    before = path.read_bytes()
    again = cli("study", "new", path, "--from", table_file, "--label", "repaid")
    assert (again.code, path.read_bytes()) == (2, before)


def test_a_study_with_secure_aggregation_states_its_assumptions(cli, tmp_path, table_file):
    words = ["--aggregation", "secure", "--min-honest-sites", "5", "--max-rows-per-site", "100000"]
    drafted, example, local = (tmp_path / name for name in ("drafted.toml", "example.toml", "local.toml"))
    cli("study", "new", drafted, "--from", table_file, "--label", "repaid", *words).succeeded()
    cli("study", "confirm", drafted, "--all").succeeded()
    cli("study", "new", example, *words).succeeded()
    cli("study", "new", local).succeeded()
    for path in (drafted, example):
        study = read_study(path)
        assert (study.training.aggregation, study.training.min_honest_sites, study.max_rows_per_site) == (
            "secure",
            5,
            100_000,
        )
        mu = math.sqrt(study.terms.plan.mu_squared())
        alone = exact_epsilon(math.sqrt(5.0) * mu, study.training.delta)
        promise = "ε is 1.0000 if at least 5 of the sites in a round are honest, and "
        for verb in ("check", "show"):
            answer = cli("study", verb, path, columns=80).succeeded()
            assert max(map(len, answer.out.splitlines())) <= 80
            shown = re.search(re.escape(promise) + r"([0-9.]+) if all other sites collude\.", text_of(answer))
            assert shown is not None
            assert alone <= float(shown[1]) <= alone + 1e-4
        assert cli("study", "show", path, "--json").succeeded().json["epsilon_if_others_collude"] == pytest.approx(
            alone
        )
    assert "min_honest_sites" not in cli("study", "show", local).succeeded().out
    for given, complaint in (
        (words[:4], "needs --min-honest-sites, the minimum number of sites"),
        (words[2:], "require --aggregation secure"),
        (["--aggregation", "masked"], "aggregation must be one of plain, secure"),
        ([*words[:2], "--min-honest-sites", "1", *words[4:]], "min_honest_sites must be a whole number of at least 2"),
    ):
        refused = cli("study", "new", tmp_path / "refused.toml", *given)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert complaint in refused.err
        assert not (tmp_path / "refused.toml").exists()


def test_from_a_dictionary(cli, tmp_path):
    words = tmp_path / "words.csv"
    words.write_text("name,kind,low,high,values\nage,number,0,120,\nill,category,,,no|yes\n")
    path = tmp_path / "drafted.toml"
    cli("study", "new", path, "--from-dictionary", words, "--label", "ill", "--name", "Flu").succeeded()
    assert "No problems found" in cli("study", "check", path).succeeded().out
    assert read_study(path).name == "Flu"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--from", "{table}"], "name the column to predict; {table} has 'age', 'ward', 'note', 'repaid'"),
        (["--from", "{table}", "--label", "repayed"], "did you mean 'repaid'"),
        (["--from", "{table}", "--from-dictionary", "{table}"], "cannot be combined"),
        (["--label", "repaid"], "require --from TABLE"),
        (["--dummy"], "--dummy requires --from TABLE"),
        (["--from", "none.csv", "--label", "repaid"], "there is no such file"),
        (["--from-dictionary", "{table}"], "requires exactly one column 'name'"),
    ],
)
def test_nothing_is_written_without_a_draft(cli, tmp_path, table_file, options, complaint):
    before = sorted(tmp_path.iterdir())
    answer = cli("study", "new", tmp_path / "x.toml", *(each.format(table=table_file) for each in options))
    assert (answer.code, answer.out) == (2, "")
    assert complaint.format(table=table_file) in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_check_counts_cells_beyond_the_bounds_and_values(cli, study_file, tmp_path):
    table = tmp_path / "table.csv"
    rows = [f"{10.0**k},{k},{'car' if k % 2 else 'boat'},{'' if k < 2 else 'yes'},yes" for k in range(10)]
    table.write_text("income,age,purpose,employed,repaid\n" + "\n".join(rows) + "\n")
    answer = cli("study", "check", study_file, "--data", table).succeeded()
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "income 6 (60.0%) 0 0" in text_of(answer)
    assert "purpose 0 5 (50.0%) 0" in text_of(answer)
    assert "employed 0 0 2 (20.0%)" in text_of(answer)
    assert "No clamped, unknown or missing cells in the label." in text_of(answer)
    assert "'age': 100% of the cells are beyond [18, 100] and clamped: other units?" in text_of(answer)
    found = cli("study", "check", study_file, "--data", table, "--json").succeeded().json
    assert found["problems"] == []
    assert found["table"]["columns"]["employed"] == {"clamped": 0, "unknown": 0, "missing": 2}


def test_check_lists_every_problem_of_a_table(cli, study_file, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(
        'Income,age,purpose,purpose,employed,repaid\n1,"4,5",a,a,yes,maybe\n1,5,a,a,yes,\n1,5,a,a,yes,Yes\n'
    )
    answer = cli("study", "check", study_file, "--data", table)
    assert answer.code == 2
    said = text_of(answer)
    for words in (
        "column problem rows rows cells",
        "income no such column: did you mean 'Income'? –",
        "purpose occurs more than once –",
        "age not a number; decimals are written with 1 1 '4,5' a point",
        "repaid missing 1 2",
        "repaid none of the classes no, yes; 1 of them 2 1, 3 'maybe', 'Yes' in capitals only",
    ):
        assert words in said
    assert answer.err.endswith("5 problems\n")


def test_check_notes_that_public_rows_do_not_influence_estimates_with_intervals(cli, tmp_path, table_file):
    path = tmp_path / "drafted.toml"
    cli("study", "new", path, "--from", table_file, "--label", "repaid").succeeded()
    cli("study", "confirm", path, "--all").succeeded()
    assert cli("study", "check", path, "--json").succeeded().json["notes"] == []
    path.write_text(re.sub("(?m)^# inference = .*", "inference = true", path.read_text()))
    said = text_of(cli("study", "check", path).succeeded())
    assert "With inference, the public rows are only the starting point and do not affect the estimate." in said
    assert "Warning" not in said


def test_check_reports_an_open_quotation_mark(cli, study_file, tmp_path):
    table = tmp_path / "table.csv"
    lines = ["50,50,car,yes,yes,x"] * 100
    lines[40] = '50,50,car,yes,yes,"x'
    table.write_text("income,age,purpose,employed,repaid,note\n" + "\n".join(lines) + "\n")
    answer = cli("study", "check", study_file, "--data", table).succeeded()
    assert "101 lines of the file make 41 rows: is a quotation mark open" in text_of(answer)


def test_check_warns_about_a_large_budget(cli, study_file, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("income,age,purpose,employed,repaid\n" + "200,30,car,yes,yes\n" * 30)
    assert "Warning" not in cli("study", "check", study_file, "--data", table).succeeded().out
    text = study_file.read_text().replace("epsilon = 1.0 ", "epsilon = 50.0 ").replace("delta = 1e-5", "delta = 0.05")
    study_file.write_text(text)
    said = text_of(cli("study", "check", study_file, "--data", table).succeeded())
    assert "Warning: ε = 50 gives weak protection" in said
    assert "Warning: δ = 0.05 is not below 1/30" in said
    assert len(cli("study", "check", study_file, "--json").succeeded().json["warnings"]) == 1  # rows are not known


def test_the_json_schema(cli, tmp_path):
    shown = cli("study", "schema").succeeded().json
    assert shown["$schema"].endswith("2020-12/schema")
    cli("study", "schema", "-o", tmp_path / "study.schema.json").succeeded()
    assert json.loads((tmp_path / "study.schema.json").read_text(encoding="utf-8")) == shown


def test_the_owner_column_can_be_omitted(cli, tmp_path):
    rows = "\n".join(f"{k % 7}.5,{'abc'[k % 3]},{'no' if k % 2 else 'yes'}" for k in range(40))
    (tmp_path / "t.csv").write_text(f"age,hospital,ill\n{rows}\n")
    given = ("--from", tmp_path / "t.csv", "--label", "ill", "--by")
    cli("study", "new", tmp_path / "s.toml", *given, "hospital").succeeded()
    text = (tmp_path / "s.toml").read_text()
    assert "[columns.age]" in text
    assert "[columns.hospital]" not in text
    assert "identifies the data owner" in text
    wrong = cli("study", "new", tmp_path / "other.toml", *given, "hospitol")
    assert wrong.code == 2
    assert "did you mean 'hospital'" in wrong.err
    assert not (tmp_path / "other.toml").exists()


@pytest.mark.parametrize("columns", [80, 120])
def test_problems_are_a_table_that_fits_the_screen(cli, study_file, columns):
    text = study_file.read_text().replace("epsilon = 1.0", "epsilonn = 1.0")
    study_file.write_text(text.replace("[columns.age]", f"[columns.{'a' * 60}]\nkind = 3\n[columns.age]"))
    answer = cli("study", "check", study_file, columns=columns)
    assert answer.code == 2
    assert max(map(len, answer.out.splitlines())) <= columns
    assert "…" not in answer.out
    said = text_of(answer)
    assert "privacy unknown setting 'epsilonn'; did you mean 'epsilon'?" in said
    assert "a" * 20 in said


def test_check_counts_the_rows_that_would_be_clipped(cli, plain_file, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("income,age\n0.1,0.2\n3,4\n0,0\n1,1\n")
    text = text_of(cli("study", "check", plain_file, "--data", table).succeeded())
    assert "Clipped 2 of 4 rows (50.0%) to the study's row_norm, which scales down all values of a row." in text
    assert "Warning" not in text
    assert cli("study", "check", plain_file, "--data", table, "--json").succeeded().json["table"]["clipped"] == 2
    table.write_text("income,age\n0.1,0.2\n")
    assert "row_norm" not in text_of(cli("study", "check", plain_file, "--data", table).succeeded())
