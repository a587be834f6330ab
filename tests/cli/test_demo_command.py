"""``dpadmm demo``: the table, the folder, the fallback without network, interruption."""

from __future__ import annotations

import importlib
import json
import os
import time
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dpadmm.data import synthetic
from dpadmm.models.file import load_model

module = importlib.import_module("dpadmm.cli.demo")  # the name in the package is the command

KINDS = ("paper", "auto", "secure")
CLOSED = "http://127.0.0.1:9"  # nothing listens there


def offline(cache: Path) -> dict[str, str]:
    """Return an environment in which Adult is not available."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), CLOSED)
    return {
        **nowhere,
        "no_proxy": "",
        "NO_PROXY": "",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "DPADMM_ADULT": "",
        "DPADMM_CACHE": str(cache),
    }


def read_summary(folder: Path) -> dict:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads((folder / "summary.json").read_text(), parse_constant=refuse)


def check_folder(folder: Path, *, repeats: int = 3) -> None:
    names = {path.name for path in folder.iterdir()}
    files = {"settings.toml", "trace.csv", "summary.json", "convergence.png", "convergence.svg"}
    runs = [f"{kind}-{e}-{k + 1}" for kind in KINDS for e in ("0.05", "0.1") for k in range(repeats)]
    models = {f"model-{run}.npz" for run in runs}
    assert names == files | models | {f"model-{run}.privacy.json" for run in runs}
    assert (folder / "convergence.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(folder / "convergence.svg").getroot().tag.endswith("svg")
    for name in models:
        model = load_model(folder / name)
        assert model.privacy["epsilon"] == pytest.approx(0.2772 if "0.05" in name else 0.6339, abs=5e-5)


def check_table(text: str) -> dict[str, list[str]]:
    """The rows of the table: first words -> cells."""
    lines = [line for line in text.splitlines() if not line.startswith(("Figure:", "All results:"))]
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    starts = (" opt", " DP-", " auto")
    shown = [line.replace("auto, secure aggregation", "masked") for line in lines if line.startswith(starts)]
    rows = {" ".join(line.split()[:2]): line.split() for line in shown}
    named = [f"{name} {epsilon}" for epsilon in ("0.2772", "0.6339") for name in ("DP-ADMM", "auto", "masked")]
    assert list(rows)[1:] == named
    assert next(iter(rows)).startswith("optimum ")
    assert [int(rows[name][2]) for name in named if name.startswith("DP")] == [100, 100]
    words = " ".join(text.split())
    assert "0.5009 and 1.0193. With DP-ADMM and auto, an agent's privacy does not depend on anyone else." in words
    promise = "ε holds if at least 50 agents are honest. If all others collude, it is 2.8934 and 6.9539."
    assert promise in words
    return rows


def test_without_network_the_demo_uses_synthetic_rows(cli, tmp_path, monkeypatch):
    for name, value in offline(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    answer = cli("demo", "-o", "out").succeeded()
    assert answer.err == ""
    assert answer.out.startswith("Adult is not available, so the demo uses synthetic rows.")
    assert "DPADMM_ADULT" in answer.out
    check_table(answer.out)
    assert answer.out.endswith("Figure: out/convergence.png\nAll results: out\n")
    check_folder(tmp_path / "out")
    assert not (tmp_path / "cache").exists()


def test_the_fallback_is_fast(tmp_path, monkeypatch):
    for name, value in offline(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    dataset, settings = module._choose("auto", quiet=True)
    assert time.monotonic() - started < 15.0
    assert dataset.name == "synthetic binary"
    assert settings.n_agents == 100


def test_adult_without_network_is_one_sentence(cli, tmp_path, monkeypatch):
    for name, value in offline(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    answer = cli("demo", "--data", "adult", "-o", tmp_path / "out")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("dpadmm: Adult could not be fetched")
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def one_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """One split instead of three."""
    monkeypatch.setattr(module, "REPEATS", 1)


@pytest.fixture
def small(one_repeat: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few rows."""
    monkeypatch.setattr(module, "as_dataset", lambda *_: synthetic("binary", n_rows=1000, n_features=5))


@pytest.mark.usefixtures("sketched")
def test_json_and_written_settings_repeat_the_run(cli, tmp_path, one_repeat):
    answer = cli("demo", "--data", "synthetic", "-o", tmp_path / "out", "--json").succeeded()
    assert answer.err == ""
    assert answer.json == read_summary(tmp_path / "out")
    reached = answer.json["measures"]["DP-ADMM, ε = 0.2772"]["train_loss_global"]["mean"]
    assert reached > answer.json["optimum"]["train_loss_global"]
    settings = tomllib.loads((tmp_path / "out" / "settings.toml").read_text())
    assert (settings["data"], settings["round_epsilon"], settings["repeats"]) == ("synthetic", 0.05, 1)
    again = cli("simulate", "-c", tmp_path / "out" / "settings.toml", "--json").succeeded()
    assert again.json["measures"]["train_loss_global"]["mean"] == reached


@pytest.mark.usefixtures("sketched")
def test_output_fits_any_width_and_the_folder_can_be_reused(cli, tmp_path, small, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for columns in (80, 120):
        text = cli("demo", "--data", "synthetic", "-o", "out", columns=columns).succeeded().out
        assert max(map(len, text.splitlines())) <= columns
        assert "…" not in text


def test_an_unusable_output_folder(cli, tmp_path):
    (tmp_path / "file").write_text("mine")
    answer = cli("demo", "--data", "synthetic", "-o", tmp_path / "file")
    assert (answer.code, answer.out) == (2, "")
    assert "file is a file; choose another output folder" in answer.err


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize("when", ["optimum", "first run", "second run"])
def test_ctrl_c(cli, tmp_path, monkeypatch, small, when):
    from dpadmm.baselines import Centralized
    from dpadmm.methods import DpAdmm

    method, at = {
        "optimum": (Centralized, 1),
        "first run": (DpAdmm, 1),
        "second run": (DpAdmm, 105),
    }[when]
    original, calls = method.step, 0

    def step(self, *args, **more):
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return original(self, *args, **more)

    monkeypatch.setattr(method, "step", step)
    answer = cli("demo", "--data", "synthetic", "-o", tmp_path / "out")
    assert answer.code == 130
    if when != "second run":
        assert (answer.out, answer.err) == ("", "dpadmm: interrupted\n")
        assert not (tmp_path / "out").exists()
        return
    assert "dpadmm: interrupted in run 4 of " in answer.err
    runs = read_summary(tmp_path / "out")["runs"]
    assert [run["rounds"] for name, run in runs.items() if name.startswith("paper")] == [100, 4]


@pytest.mark.adult
def test_the_demo_on_adult(cli, tmp_path, one_repeat, monkeypatch):
    """One split; ``tests/training/test_adult_reference.py`` has more of them."""
    monkeypatch.chdir(tmp_path)
    answer = cli("demo", "--data", "adult", "-o", "out").succeeded()
    assert answer.err == ""
    assert answer.out.startswith("adult: 40000 training rows × 104 features, 100 agents\n")
    rows = check_table(answer.out)
    optimum = next(iter(rows.values()))
    assert float(optimum[1]) == pytest.approx(0.323, abs=0.003)
    assert float(rows["DP-ADMM 0.2772"][3]) == pytest.approx(0.431, abs=0.006)
    assert float(rows["DP-ADMM 0.6339"][3]) == pytest.approx(0.418, abs=0.006)
    assert float(rows["auto 0.2772"][3]) < 0.425
    assert float(rows["auto 0.6339"][3]) < 0.405
    assert float(rows["masked 0.2772"][3]) < 0.36
    assert float(rows["masked 0.6339"][3]) < 0.35
    check_folder(tmp_path / "out", repeats=1)
    assert os.path.getsize(tmp_path / "out" / "convergence.png") > 10_000
