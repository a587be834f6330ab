"""The Dockerfile without a container engine: its steps run in a mount namespace, over the local system's files.

The local Debian and Python replace the base image. The result runs read-only as the image's user, as in
``compose.yaml``. Not covered: the base image, the engine's layers, networks, limits and health checks. ``python
tests/support/images.py`` builds into ``.image`` and prints the sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "examples" / "deployment" / "Dockerfile"
HERE = ROOT / ".image"
NAMESPACE = r"""
root=$1; user=$2; shift 2
read_only() { mount --bind "$1" "$root$1"; mount -o remount,bind,ro "$root$1"; }
mount -t tmpfs -o mode=755 tmpfs "$root"
for each in /* /opt/* /root/* /root/.[!.]*; do
    case $each in
        /proc | /dev) mkdir "$root$each"; mount --rbind "$each" "$root$each" ;;
        /opt | /root | /tmp) mkdir "$root$each" ;;
        *) if [ -L "$each" ]; then cp -P "$each" "$root$each"
           elif [ -d "$each" ]; then mkdir "$root$each"; read_only "$each"; fi ;;
    esac
done
mount -t tmpfs tmpfs "$root/tmp"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"; mount --bind "$1" "$root$2"; mount -o "remount,bind,$3" "$root$2"; shift 3
done; shift
mount -o remount,ro "$root"
exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"
"""
"""Runs words in a root of this machine's files, read-only but for /tmp and the folders that are given as rw."""


@dataclass
class Stage:
    """A stage of the Dockerfile: its steps, and those of the stages it is built on."""

    name: str
    parent: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    """COPY or RUN, what it says, and where."""

    @property
    def folder(self) -> Path:
        return HERE / self.name


def stages() -> dict[str, Stage]:
    """Return the stages of the Dockerfile, in order."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, Stage] = {}
    stage = Stage("")
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, rest = line.partition(" ")
        if kind == "FROM":
            base, _, name = rest.split()
            old = found.get(base)
            stage = found[name] = (
                Stage(name) if old is None else Stage(name, base, dict(old.env), old.workdir, old.user, old.entrypoint)
            )
        elif kind == "ENV":
            stage.env |= dict(word.split("=", 1) for word in rest.split())
        elif kind in ("WORKDIR", "USER"):
            setattr(stage, kind.lower(), rest)
        elif kind in ("ENTRYPOINT", "CMD"):
            setattr(stage, "command" if kind == "CMD" else "entrypoint", json.loads(rest))
        elif kind == "HEALTHCHECK":
            stage.health = json.loads(rest.partition("CMD ")[2])
        elif kind in ("COPY", "RUN"):
            stage.steps.append((kind, rest, stage.workdir))
        else:
            assert kind == "ARG", f"not an instruction that is known here: {line}"
    return found


def _context(names: list[str]) -> list[Path]:
    """Return the files of the build context under these names."""
    found = [
        item for name in names for item in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ]
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def keys(stage: Stage, of: dict[str, Stage]) -> list[str]:
    """Return a digest for each step: of the step, all earlier steps, and the files that they copied."""
    digest = hashlib.sha256(sys.version.encode())
    if stage.parent is not None:
        digest.update("".join(keys(of[stage.parent], of)).encode())
    found = []
    for step in stage.steps:
        digest.update(repr(step).encode())
        kind, text, _ = step
        if source := re.match("--from=([^ ]+)", text):
            digest.update("".join(keys(of[source[1]], of)).encode())
        elif kind == "COPY":
            for path in _context(text.split()[:-1]):
                digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
        found.append(digest.hexdigest())
    return found


def _done(stage: Stage) -> list[str]:
    path = HERE / f"{stage.name}.json"
    return list(json.loads(path.read_text())) if path.exists() else []


def is_built() -> bool:
    """Return whether the build is up to date with the Dockerfile and the source."""
    all_stages = stages()
    return all(_done(stage) == keys(stage, all_stages) for stage in all_stages.values() if stage.steps)


def build() -> None:
    """Run the steps. The first RUN is repeated only if it changed, because it installs all packages."""
    all_stages = stages()
    for stage in all_stages.values():
        wanted, done = keys(stage, all_stages), _done(stage)
        if wanted == done:
            continue
        first = 1 + [kind for kind, *_ in stage.steps].index("RUN") if stage.name == "build" else 0
        if not first or wanted[:first] != done[:first]:
            first = 0
            shutil.rmtree(stage.folder, ignore_errors=True)
            if stage.parent is not None and all_stages[stage.parent].steps:
                subprocess.run(["cp", "-al", all_stages[stage.parent].folder, stage.folder], check=True)
        for kind, text, workdir in stage.steps[first:]:
            if kind == "COPY":
                _copy(stage, text.split(), workdir)
            else:
                words = in_stage(stage, ["/bin/sh", "-ec", f"cd {workdir}; {text}"], building=True)
                own = {"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}"}  # the Python of the base image
                subprocess.run(words, env=os.environ | stage.env | own, stdout=sys.stderr, check=True)
        (HERE / f"{stage.name}.json").write_text(json.dumps(wanted))


def _copy(stage: Stage, words: list[str], workdir: str) -> None:
    *names, target = words
    to = stage.folder / os.path.normpath(os.path.join(workdir, target)).strip("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    if names[0].startswith("--from="):
        subprocess.run(["cp", "-al", f"{HERE / names[0].partition('=')[2]}{names[1]}", to], check=True)
        return
    for path in _context(names):
        name = path.name if (ROOT / names[0]).is_file() else path.relative_to(ROOT / names[0])
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to / name)


def in_stage(stage: Stage, words: list[str], *, building: bool = False, **folders: Path) -> list[str]:
    """Return a command that runs ``words`` in a stage as its user, with local folders: site=PATH."""
    mount = HERE / "mount"  # separate in each namespace
    for needed in (mount, stage.folder / "opt" / "dpadmm", stage.folder / "build"):
        needed.mkdir(parents=True, exist_ok=True)
    mounts = [str(stage.folder / "opt" / "dpadmm"), "/opt/dpadmm", "rw" if building else "ro"]
    if building:
        mounts += [str(stage.folder / "build"), "/build", "rw"]
    for at, path in folders.items():
        mounts += [str(path), f"/{at}", "rw"]
    return ["unshare", "--mount", "/bin/sh", "-ec", NAMESPACE, "sh", str(mount), stage.user, *mounts, "--", *words]


def in_image(name: str, words: list[str], **folders: Path) -> list[str]:
    """The same with exactly the variables of the image."""
    stage = stages()[name]
    path = stage.env["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
    variables = [f"{key}={value}" for key, value in (stage.env | {"PATH": path}).items()]
    return in_stage(stage, ["/usr/bin/env", "-i", *variables, *words], **folders)


def can_run() -> bool:
    """Return whether this system allows it: root and mount namespaces are required."""
    if os.getuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "chroot"))):
        return False
    trial = in_stage(Stage("trial"), ["/bin/true"])
    return subprocess.run(trial, stderr=subprocess.DEVNULL, check=False).returncode == 0


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


if __name__ == "__main__":
    if not can_run():
        sys.exit("the Dockerfile's steps cannot be run here: they need root, and mount namespaces")
    build()
    for name in ("site", "server"):
        sys.stdout.write(f"{name}: {megabytes(HERE / name):.0f} MB, beside the base image\n")
