"""write_all: every file it names is there, whole, and the same when made again."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from dpadmm.reporting.paper import write_all


def test_everything_is_written_and_the_same_again(paper_results, tmp_path):
    part = paper_results.select("bounds")
    written = write_all(part, tmp_path / "one")
    names = {str(path.relative_to(tmp_path / "one")) for path in written}
    assert {
        "figures/bounds.png",
        "figures/bounds.svg",
        "figures/captions.md",
        "claims.md",
        "claims.json",
    } <= names
    assert {"tables/accuracy_bounds.md", "tables/accuracy_bounds.csv", "tables/settings.md"} <= names
    there = {
        str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*") if path.is_file()
    }
    assert there == names
    json.loads((tmp_path / "one" / "claims.json").read_text())
    for path in write_all(part, tmp_path / "two"):
        again = tmp_path / "one" / path.relative_to(tmp_path / "two")
        assert path.read_bytes() == again.read_bytes(), path.name
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
