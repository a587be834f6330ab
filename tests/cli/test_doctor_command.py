"""``dpadmm doctor`` and ``dpadmm version``: findings, fixes, and no personal data."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from importlib import import_module, metadata
from pathlib import Path

import pytest

import dpadmm
from dpadmm.federation.local import SITE_TOML
from dpadmm.sites.site import read_site

module = import_module("dpadmm.cli.doctor")


def site_in(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    (folder / "table.csv").write_text("age,ill\n1,no\n")
    text = SITE_TOML.format(table="table.csv", label="ill", epsilon=1.0, delta=1e-6, max_rounds=10)
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


def findings(answer) -> dict[tuple[str, str], str]:
    assert answer.json["problems"] == sum(each["level"] == "problem" for each in answer.json["findings"])
    assert answer.code == (1 if answer.json["problems"] else 0)
    for each in answer.json["findings"]:
        assert each["fix"] or each["level"] == "ok" or "chmod" in each["text"], each
    return {(each["check"], each["level"]): each["text"] for each in answer.json["findings"]}


def test_version_in_short_and_as_json(cli):
    assert cli("version").succeeded().out == f"{dpadmm.__version__}\n"
    assert cli("version", "--json").succeeded().json == {"dpadmm": dpadmm.__version__}


def test_the_long_version_has_the_environment_without_personal_data(cli, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    said = cli("version", "--verbose", "--json").succeeded()
    assert said.json["python"].startswith(platform.python_version())
    assert said.json["packages"]["numpy"] == metadata.version("numpy")
    assert said.json["extras"]["federation"] == "installed"
    assert set(said.json["extras"]) >= {"sklearn", "onnx", "duckdb", "postgresql", "dask", "federation"}
    assert not {"dev", "docs"} & set(said.json["extras"])
    assert said.json["threads"]["OPENBLAS_NUM_THREADS"] == "1"
    text = cli("version", "-v", columns=80).succeeded().out
    assert re.search(rf"numpy +{re.escape(metadata.version('numpy'))}", text)
    private = {platform.node(), str(Path.home()), str(Path(dpadmm.__file__).parent), os.getcwd()}
    user = getpass.getuser()
    for name in {*private, *([user] if len(user) > 4 else [])} - {""}:
        assert name not in text + said.out


def test_a_healthy_installation(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = cli("doctor").succeeded().out
    for check in ("version", "packages", "extras", "compiler", "clock", "disk"):
        assert f" {check} " in text
    assert "0 problems found." in text


def test_missing_and_outdated_packages(cli, monkeypatch):
    real = metadata.version
    shown = {"numpy": "1.26.4", "scipy": None, "numba": None}

    def version(name: str) -> str:
        found = shown.get(name, "") if name in shown else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(module.metadata, "version", version)
    found = findings(cli("doctor", "--json"))
    sentences = [each["text"] for each in cli("doctor", "--json").json["findings"] if each["check"] == "packages"]
    assert sentences == ["too old: numpy 1.26.4 (needs 2.0)", "missing: scipy"]
    assert found["compiler", "ok"].startswith("not installed")
    shown.update(numpy="2.0", scipy="1.13")
    assert findings(cli("doctor", "--json"))["packages", "warning"] == "without numba"


def test_cold_warm_and_read_only_compiler_caches(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert "is empty: the first run takes longer" in findings(cli("doctor", "--json"))["compiler", "ok"]
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    major, minor = platform.python_version_tuple()[:2]
    (tmp_path / "cache" / "kernels" / f"passes.sums-1.py{major}{minor}.nbi").touch()
    (tmp_path / "cache" / "kernels" / "passes.sums-1.py27.nbi").touch()
    assert "has 1 compiled function" in findings(cli("doctor", "--json"))["compiler", "ok"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "cannot be stored in NUMBA_CACHE_DIR" in findings(cli("doctor", "--json"))["compiler", "warning"]


def test_a_clock_before_the_installation_is_a_problem():
    (fine,) = module._clock()
    (wrong,) = module._clock(datetime(1970, 1, 2, tzinfo=UTC))
    assert (fine.level, wrong.level) == ("ok", "problem")
    assert "1970-01-02" in wrong.text


def test_a_nearly_full_disk(cli, monkeypatch):
    for free, level in [(2**20, "problem"), (2**28, "warning"), (2**34, "ok")]:
        usage = shutil.disk_usage(".")._replace(free=free)
        monkeypatch.setattr(module.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert ("disk", level) in findings(cli("doctor", "--json"))


def test_a_site_is_checked_from_file_to_ledger(cli, tmp_path, monkeypatch):
    answer = cli("doctor", "--site", tmp_path / "site.toml", "--json")
    assert "no such file" in findings(answer)["site", "problem"]
    file = site_in(tmp_path / "here")
    assert findings(cli("doctor", "--site", file, "--json"))["ledger", "warning"] == "not created"
    read_site(file).begin()
    found = findings(cli("doctor", "--site", file, "--json"))
    assert found["ledger", "ok"].startswith("intact: ")
    assert found["certificate", "ok"].startswith("none")
    file.chmod(0o666)
    assert "chmod o-w" in findings(cli("doctor", "--site", file, "--json"))["site", "warning"]
    (file.parent / "table.csv").unlink()
    assert "there is no" in findings(cli("doctor", "--site", file, "--json"))["table", "problem"]


def test_a_damaged_ledger_and_one_from_the_future(cli, tmp_path, monkeypatch):
    import dpadmm.trusted.ledger as ledgers

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=1)

    file = site_in(tmp_path / "here")
    with monkeypatch.context() as later:
        later.setattr(ledgers, "datetime", Tomorrow)
        read_site(file).begin()
    found = findings(cli("doctor", "--ledger", file.parent / "ledger", "--json"))
    assert "the last record of the ledger is dated" in found["clock", "problem"]
    (database,) = (file.parent / "ledger").glob("*.sqlite")
    with sqlite3.connect(database) as changed:
        changed.execute("UPDATE records SET mu_squared = 99")
    changed.close()
    before = {path.name: path.read_bytes() for path in (file.parent / "ledger").iterdir()}
    found = findings(cli("doctor", "--ledger", file.parent / "ledger", "--json"))
    assert "ledger-damaged" in found["ledger", "problem"]
    assert before == {path.name: path.read_bytes() for path in (file.parent / "ledger").iterdir()}


def test_certificates(cli, tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    from dpadmm.federation import health
    from dpadmm.federation.identity import joining
    from dpadmm.federation.identity.authority import Authority
    from dpadmm.federation.local import invite

    file = site_in(tmp_path / "here")
    authority = Authority.create(tmp_path / "hub", hosts=["localhost"], port=4222)
    invite(authority, read_site(file), "north")
    assert findings(cli("doctor", "--site", file, "--json"))["certificate", "ok"].startswith("valid for")
    for days, level in [(10, "warning"), (-3, "problem")]:
        monkeypatch.setattr(health, "days_left", lambda _, days=days: days)
        assert ("certificate", level) in findings(cli("doctor", "--site", file, "--json"))
    monkeypatch.undo()
    early = datetime.now(UTC) - timedelta(days=5000)
    monkeypatch.setattr(joining.certificates, "now_or", lambda moment: early)
    assert ("certificate", "problem") in findings(cli("doctor", "--site", file, "--json"))
