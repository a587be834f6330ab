"""The images of the Dockerfile: a whole federation without compiler and figures, read-only and not as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import images
import pytest
from federations import NAMES, Federation, small_study, wait_for
from looping import case

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.local import SiteSubprocess, free_port
from dpadmm.federation.server.process import begin

LEFT_OUT = ("numba", "llvmlite", "matplotlib", "jinja2", "PIL", "sklearn", "pandas", "pip")


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    if not images.can_run():
        reason = "the steps of a Dockerfile need root and mount namespaces here"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    if not images.is_built():
        reason = "the image is not that of this source: make image"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


def run(image: str, words: Sequence[str], **folders: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(images.in_image(image, [*words], **folders), capture_output=True, text=True, check=False)


class Container(SiteSubprocess):
    """A process in an image, by default with the image's own command."""

    def __init__(self, image: str, output: Path, words: Sequence[str] = (), **folders: Path) -> None:
        stage, self._is_terminating, self._output = images.stages()[image], False, output
        with output.open("ab") as out:
            self.process = subprocess.Popen(
                images.in_image(image, [*stage.entrypoint, *(words or stage.command)], **folders),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip


def give(folder: Path, user: str) -> None:
    subprocess.run(["chown", "-R", user, folder], check=True)


def test_federation_of_images_equals_the_run_in_one_process(tmp_path: Path) -> None:
    for name, study in [
        ("dp_admm", small_study(20)),
        ("auto, secure aggregation", small_study(20, max_rows_per_site=100, quorum=3, deadline=5.0)),
    ]:
        with case(name):
            folder = tmp_path / name.partition(",")[0]
            hub = folder / "hub"
            hub.mkdir(parents=True)
            authority = Authority.create(hub / "folder", hosts=["localhost"], port=free_port())
            with Federation(folder, study, authority=authority) as all:
                all.accept()
                user, broker, serving = images.stages()["site"].user, None, None
                for entry in (hub, *(folder / name for name in NAMES)):
                    give(entry, user)
                try:
                    broker = Container("server", folder / "broker.txt", server=hub)
                    for one_item in NAMES:
                        all.agents[one_item] = Container(
                            "site", folder / one_item / "output.txt", site=folder / one_item
                        )
                        all._all.append(all.agents[one_item])
                    words = ["server", "run", "--folder", "/server/folder", "--no-page"]
                    healthy = images.stages()["site"].health
                    all.all_connected()
                    wait_for(
                        lambda folder=folder, healthy=healthy: not run("site", healthy, site=folder / "a").returncode
                    )
                    hub_healthy = images.stages()["server"].health
                    assert run("server", hub_healthy, server=hub).returncode == 0
                    begin(authority, all.study, list(NAMES))
                    give(hub, user)
                    serving = Container(
                        "server", folder / "aggregator.txt", [*words, "--broker", authority.url], server=hub
                    )
                    assert serving.process.wait(90) == 0, serving.output
                    all.agents["a"].kill()
                finally:
                    for item in filter(None, (serving, broker)):
                        item.end()
                for member in NAMES[1:]:
                    assert all.agents[member].end() == 0, all.agents[member].output
                seen = run("site", healthy, site=folder / "b")
                assert (seen.returncode, "was stopped at" in seen.stdout) == (1, True)
                for element in (hub, *(folder / name for name in NAMES)):
                    give(element, f"{os.getuid()}:{os.getgid()}")
                all.check()


def test_image_is_read_only_without_root_and_minimal() -> None:
    for image in ("site", "server"):
        with case(image):
            assert run(image, ["id", "-u"]).stdout == "10001\n"
            for path in ("/here", "/opt/dpadmm/here", "/etc/here"):
                assert "Read-only file system" in run(image, ["touch", path]).stderr
            found = f"from importlib.util import find_spec; print([m for m in {LEFT_OUT} if find_spec(m)])"
            assert run(image, ["/opt/dpadmm/bin/python", "-c", found]).stdout == "[]\n"
    there = [(images.HERE / image / "opt/dpadmm/bin/nats-server").exists() for image in (("site", "server"))]
    assert there == [False, True]


def test_package_list_is_complete_except_compiler_and_figures() -> None:
    """pip, which is not in the image, reports missing requirements."""
    tool = shutil.which("pip", path=f"{images.sys.base_prefix}/bin")
    assert tool is not None
    python = images.HERE / "build" / "opt" / "dpadmm" / "bin" / "python"
    said = subprocess.run([tool, "--python", python, "check"], capture_output=True, text=True, check=False).stdout
    assert sorted(said.splitlines()) == [
        f"dpadmm 0.1.0 requires {name}, which is not installed." for name in ("jinja2", "matplotlib", "numba")
    ]


def test_missing_extras_are_named_when_needed(tmp_path: Path) -> None:
    give(tmp_path, "10001:10001")
    for words, package in [
        (["demo", "-o", "/site/out"], "matplotlib"),
        (["simulate", "--data", "synthetic", "--epsilon", "1", "--rounds", "3", "-o", "/site/run"], "matplotlib"),
    ]:
        with case(words):
            seen = run("site", ["dpadmm", *words], site=tmp_path)
            text = f"this command needs {package}, which a site installation does not include; run: pip install dpadmm"
            assert (seen.returncode, text in seen.stderr, "Traceback" in seen.stderr) == (2, True, False), seen.stderr
