"""``make dist``: wheel, sdist and SBOM, built twice, checked, and tried in empty environments without network.

Every step that fails ends the program with the output of what failed. ``--only-build`` leaves out the environments.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("sklearn", "onnx", "excel", "duckdb", "postgresql", "dask", "federation")
NOWHERE = "http://127.0.0.1:9"  # nothing listens there
OFFLINE = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE),
    **dict.fromkeys(("no_proxy", "NO_PROXY", "PIP_FIND_LINKS", "DPADMM_ADULT", "PYTHONPATH"), ""),
    "PIP_NO_INDEX": "1",
}
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
os.execv(sys.argv[1], sys.argv[1:])
"""
IN_SDIST = (
    "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "Makefile",
    "constraints.txt", "pyproject.toml", "src/dpadmm/version.py", "tests/conftest.py",
    "docs/explanation/threat-model.md", "examples/tutorial.py", "reproduction/grid.toml", "release/make.py", "PKG-INFO",
)  # fmt: skip
IN_WHEEL = (
    "dpadmm/py.typed", "dpadmm/federation/web/static/server.html",
    "dpadmm/data/datasets/tables.toml",
)  # fmt: skip


class Built(NamedTuple):
    """The two files of a release."""

    sdist: Path
    wheel: Path


def run(
    words: Sequence[object], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, code: int = 0
) -> str:
    """The output of a program, which must end with ``code`` in ten minutes."""
    texts = [str(word) for word in words]
    done = subprocess.run(
        texts, cwd=cwd, env={**os.environ, **(env or {})}, text=True, timeout=600, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != code:
        sys.exit(f"{done.stdout}\n$ {shlex.join(texts)}\nended with {done.returncode} instead of {code}")
    return done.stdout


def version() -> str:
    found = re.search(r'VERSION = "([^"]+)"', (ROOT / "src/dpadmm/version.py").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def build(tree: Path, out: Path, moment: str) -> Built:
    """The sdist of a tree, and the wheel of that sdist."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree], env={"SOURCE_DATE_EPOCH": moment})
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


def build_twice(out: Path) -> Built:
    """Built here, and from a copy in another folder whose files have other times: both must have the same bytes."""
    moment = os.environ.get("SOURCE_DATE_EPOCH") or commit_time()
    with tempfile.TemporaryDirectory(prefix="dpadmm-dist-") as folder:
        first = build(ROOT, Path(folder) / "first", moment)
        with tarfile.open(first.sdist) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = (each for each in Path(folder).iterdir() if each.name != "first")
        for path in tree.rglob("*"):
            os.utime(path, (10**9, 10**9))
        again = build(tree, Path(folder) / "again", moment)
        for one, other in zip(first, again, strict=True):
            if one.read_bytes() != other.read_bytes():
                sys.exit(f"{one.name} is not reproducible: two builds differ")
        out.mkdir(parents=True, exist_ok=True)
        for old in out.iterdir():
            old.unlink()
        return Built(*(Path(shutil.copy(each, out)) for each in first))


def commit_time() -> str:
    """The time of the commit, so that anyone can build the same bytes; without git, that of the changelog."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(int((ROOT / "CHANGELOG.md").stat().st_mtime))


def check_contents(built: Built) -> None:
    """What users and packagers need is there, what they do not is not, and nothing names this machine."""
    with tarfile.open(built.sdist) as archive:
        base = built.sdist.name.removesuffix(".tar.gz")
        members = archive.getmembers()
        names = {each.name.removeprefix(f"{base}/") for each in members}
        if strange := [each.name for each in members if not each.isfile() or each.uid or each.uname]:
            sys.exit(f"sdist: links, folders or names of users: {strange[:5]}")
    if missing := [name for name in IN_SDIST if name not in names]:
        sys.exit(f"sdist: missing {', '.join(missing)}")
    if surplus := [
        name for name in names if re.search(r"(^|/)(\.venv|__pycache__|\.git)/|^(runs|dist)/|\.nb[ic]$", name)
    ]:
        sys.exit(f"sdist: should not have {surplus[:5]}")
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = set(wheel.namelist())
        tops = {name.split("/")[0] for name in inside}
        about = next(name for name in inside if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(about).decode()
        if here := [name for name in inside if str(ROOT).encode() in wheel.read(name)]:
            sys.exit(f"wheel: {here[0]} names a folder of this machine")
    if missing := [name for name in IN_WHEEL if name not in inside]:
        sys.exit(f"wheel: missing {', '.join(missing)}")
    if tops != {"dpadmm", f"dpadmm-{version()}.dist-info"}:
        sys.exit(f"wheel: installs {', '.join(sorted(tops))}")
    for line in (f"Version: {version()}", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        if f"{line}\n" not in metadata:
            sys.exit(f"wheel: its metadata has no {line!r}")


class Environment:
    """A virtual environment with the wheel, and a folder to work in; its programs have no network."""

    def __init__(self, folder: Path, wheel: Path, *, extra: str | None = None, base: Environment | None = None) -> None:
        """With ``base``, only what an extra adds is installed: the rest is read from there."""
        self.python, self.work = folder / "bin" / "python", folder / "work"
        venv.create(folder, with_pip=True)
        self.work.mkdir()
        if base is not None:
            (self.packages / "base.pth").write_text(f"{base.packages}\n", encoding="utf-8")
        install = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # all versions are those that the tests ran with
        run([*install, "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]" if extra else wheel])
        run([self.python, "-m", "pip", "check"])

    @property
    def packages(self) -> Path:
        (found,) = (self.python.parents[1] / "lib").glob("python*/site-packages")
        return found

    def program(self, *words: object, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """``python`` with these words, offline."""
        own = {**OFFLINE, **(env or {}), "DPADMM_CACHE": str(self.work / "cache"), "HOME": str(self.work)}
        return run([*without_network(), self.python, *words], cwd=self.work, env=own, code=code)

    def dpadmm(self, *words: object, code: int = 0) -> str:
        return self.program("-c", "from dpadmm.cli import main; main()", *words, code=code)


def without_network() -> list[str]:
    """Words that start a program with nothing but loopback, where the system lets us; proxies lead nowhere anyway."""
    cut = ["unshare", "--net", "--map-root-user", sys.executable, "-c", LOOPBACK]
    try:
        allowed = subprocess.run([*cut, "/bin/true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return cut if allowed else []


def write_tables(folder: Path) -> None:
    """The tables of the README's example, made up."""
    rng = random.Random(1)
    for name, n in (("sample.csv", 400), ("patients.csv", 4000), ("test.csv", 800), ("new.csv", 20)):
        with (folder / name).open("w", newline="", encoding="utf-8") as out:
            table = csv.writer(out)
            table.writerow(["case", "hospital", "age", "smoker", "ill"])
            for i in range(n):
                age, smoker = rng.randint(18, 90), rng.random() < 0.3
                ill = rng.random() < 1 / (1 + 2.718 ** -(0.06 * (age - 60) + 1.5 * smoker))
                table.writerow(
                    [f"c{i}", rng.choice("ABCDE"), age, *("yes" if each else "no" for each in (smoker, ill))]
                )


def readme_commands() -> list[list[str]]:
    """The commands of the README's block that begins with a draft."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        lines = [shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines()]
        commands = [words[1:] for words in lines if words[:1] == ["dpadmm"]]
        if any(words[:2] == ["study", "new"] for words in commands):
            return commands
    sys.exit("README.md has no block of commands with dpadmm study new")


def try_base(base: Environment) -> None:
    """What works without any extra and without network."""
    if base.dpadmm("--version").strip() != version():
        sys.exit("dpadmm --version is not that of the wheel")
    base.dpadmm("version", "--verbose")
    base.dpadmm("doctor")
    said = base.dpadmm("demo")
    if not said.startswith("Adult is not available, so the demo uses synthetic rows."):
        sys.exit(f"the demo does not say that it uses synthetic rows:\n{said}")
    write_tables(base.work)
    for words in readme_commands():
        base.dpadmm(*words)
    base.dpadmm("verify", "model.privacy.json")


MISSING = {
    "sklearn": ["-c", "import dpadmm; dpadmm.DPADMMClassifier"],
    "onnx": ["-c", "import dpadmm; dpadmm.load_model('model.dpadmm').to_onnx('model.onnx')"],
    "dask": ["-c", "from dpadmm.data.cluster import Cluster\nwith Cluster('tcp://127.0.0.1:9'): pass"],
}
COMMANDS = {
    "excel": ["study", "check", "study.toml", "--data", "patients.ods"],
    "duckdb": ["study", "check", "study.toml", "--data", "clinic.toml"],
    "postgresql": ["study", "check", "study.toml", "--data", "server.toml"],
    "federation": ["demo", "--federated", "--sites", "3", "--rounds", "5"],
}  # fmt: skip
SKLEARN = """
import csv
from dpadmm import DPADMMClassifier
rows = [(float(row["age"]), row["ill"]) for row in csv.DictReader(open("patients.csv"))]
X, y = [[age] for age, _ in rows], [ill for _, ill in rows]
model = DPADMMClassifier(epsilon=2, delta=1e-5, center=50.0, scale=20.0, classes=["no", "yes"]).fit(X, y)
assert model.score(X, y) > 0.6
"""
EXCEL = """
import csv, zipfile
def row(cells):
    texts = "".join(f'<t:table-cell o:value-type="string"><x:p>{each}</x:p></t:table-cell>' for each in cells)
    return f"<t:table-row>{texts}</t:table-row>"
rows = "".join(map(row, csv.reader(open("patients.csv"))))
names = "urn:oasis:names:tc:opendocument:xmlns"
with zipfile.ZipFile("patients.ods", "w") as made:
    made.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
    made.writestr("META-INF/manifest.xml", f'<m:manifest xmlns:m="{names}:manifest:1.0"/>')
    made.writestr("content.xml", f'<o:document-content xmlns:o="{names}:office:1.0" xmlns:t="{names}:table:1.0" '
                  f'xmlns:x="{names}:text:1.0"><o:body><o:spreadsheet><t:table t:name="rows">{rows}</t:table>'
                  "</o:spreadsheet></o:body></o:document-content>")
"""
DUCKDB = """
import duckdb
with duckdb.connect("clinic.duckdb") as made:
    made.execute("create table visits as select * from read_csv('patients.csv', all_varchar = true)")
"""
DASK = """
from distributed import LocalCluster
from dpadmm.data.cluster import Cluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as local:
        with Cluster(local.scheduler_address) as cluster:
            assert cluster.gather([cluster.submit(abs, -1)]) == [1]
"""


def try_missing(base: Environment) -> None:
    """Without an extra, what needs it says what to install, in one sentence."""
    for name, database in (("clinic", "clinic.duckdb"), ("server", "postgresql://reader@127.0.0.1:9/research")):
        text = f'database = "{database}"\ntable = "visits"\norder_by = "case"\n'
        (base.work / f"{name}.toml").write_text(text, encoding="utf-8")
    (base.work / "patients.ods").write_bytes(b"PK")
    (base.work / "clinic.duckdb").write_bytes(b"\0" * 8 + b"DUCK" + b"\0" * 4096)  # as such a file begins
    for extra in EXTRAS:
        if extra in MISSING:
            said = base.program(*MISSING[extra], code=1).splitlines()[-1]
        else:
            said = base.dpadmm(*COMMANDS[extra], code=2)
            if said.count("\n") != 1:
                sys.exit(f"without {extra} there is more than a sentence:\n{said}")
        if f"dpadmm[{extra}]" not in said:
            sys.exit(f"without {extra} nothing says what to install: {said}")


def try_extra(extra: str, own: Environment, base: Environment) -> None:
    """One real use of an extra."""
    for name in ("study.toml", "sample.csv", "patients.csv", "model.dpadmm", "clinic.toml", "server.toml"):
        shutil.copy(base.work / name, own.work)
    if extra == "sklearn":
        own.program("-c", SKLEARN)
    elif extra == "onnx":
        own.program(*MISSING["onnx"])
    elif extra == "excel":
        own.program("-c", EXCEL)
        own.dpadmm(*COMMANDS[extra])
    elif extra == "duckdb":
        own.program("-c", DUCKDB)
        own.dpadmm(*COMMANDS[extra])
    elif extra == "postgresql":  # there is no server here: the driver is loaded and says so
        said = own.dpadmm(*COMMANDS[extra], code=2)
        if "pip install" in said or said.count("\n") != 1:
            sys.exit(f"with postgresql and no server:\n{said}")
    elif extra == "dask":
        (own.work / "cluster.py").write_text(DASK, encoding="utf-8")
        own.program("cluster.py")
    else:
        said = own.dpadmm(*COMMANDS[extra])
        if "bit by bit: yes" not in said:
            sys.exit(f"demo --federated:\n{said}")


def write_sbom(base: Environment, out: Path) -> Path:
    """What a plain install brings, in CycloneDX's form."""
    for note in base.packages.glob("dpadmm-*.dist-info/direct_url.json"):
        note.unlink()  # it names the folder of the wheel
    file = out / f"dpadmm-{version()}.cdx.json"
    own = Path(sys.executable).parent / "cyclonedx-py"
    run([own, "environment", "--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--of", "JSON",
         "-o", file, base.python])  # fmt: skip
    text = file.read_text(encoding="utf-8")
    names = {each["name"].lower() for each in json.loads(text)["components"]}
    if not {"numpy", "numba", "dp-accounting", "typer"} <= names or "file://" in text or str(ROOT) in text:
        sys.exit("the SBOM lacks a package, or names a folder of this machine")
    return file


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files; it is emptied")
    options.add_argument("--only-build", action="store_true", help="build, compare and look inside")
    options.add_argument("--tag", help="the tag of the release: must be v and the version")
    chosen = options.parse_args()
    if chosen.tag is not None and chosen.tag != f"v{version()}":
        sys.exit(f"the tag is {chosen.tag}, and src/dpadmm/version.py says {version()}: they must agree")
    began = time.monotonic()

    def told(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)

    built = build_twice(chosen.out)
    check_contents(built)
    told("built twice with the same bytes")
    if not chosen.only_build:
        tools = Path(sys.executable).parent
        run([tools / "twine", "check", "--strict", *built])
        run([tools / "check-wheel-contents", built.wheel])
        told("twine and check-wheel-contents have no complaint")
        with tempfile.TemporaryDirectory(prefix="dpadmm-try-") as folder:
            base = Environment(Path(folder) / "base", built.wheel)
            told("installed into an empty environment")
            write_sbom(base, chosen.out)
            try_base(base)
            told(f"without network{'' if without_network() else ' (by proxies only)'}: demo and the README's commands")
            try_missing(base)
            for extra in EXTRAS:
                own = Environment(Path(folder) / extra, built.wheel, extra=extra, base=base)
                try_extra(extra, own, base)
                told(f"with [{extra}]")
    files = sorted(each for each in chosen.out.iterdir() if each.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    (chosen.out / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    print("".join(sums), end="")


if __name__ == "__main__":
    main()
