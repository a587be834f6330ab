"""Metrics in the format of Prometheus, and the address that ``--metrics`` names."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpadmm.errors import StudyError
from dpadmm.federation.web.metrics import HELP, metrics_address, metrics_text, served_metrics

OPERATIONS = Path(__file__).parents[3] / "docs" / "how-to" / "operations.md"


def test_metrics_are_on_loopback_unless_an_address_is_given():
    assert metrics_address("9100") == ("127.0.0.1", 9100)
    assert metrics_address("0.0.0.0:9100") == ("0.0.0.0", 9100)
    assert metrics_address("[::1]:9100") == ("::1", 9100)
    for wrong in ("", "host:1", "-1", "65536", "1.2.3.4:"):
        with pytest.raises(StudyError, match="--metrics"):
            metrics_address(wrong)
    with served_metrics("0", lambda: [("connected", {}, 1.0)]) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode().endswith("\ndpadmm_connected 1.0\n")
        with pytest.raises(HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        with pytest.raises(StudyError, match=r"cannot listen.*--metrics"), served_metrics(str(port), list):
            pass


def test_labels_are_escaped_and_the_first_of_equal_samples_counts():
    name = 'a"b\\c\nd'
    samples = [("site_silent", {"site": name}, 1.0), ("site_silent", {"site": name}, 0.0), ("stalled", {}, 0.0)]
    parsed = {family.name: family for family in text_string_to_metric_families(metrics_text(samples).decode())}
    assert [(sample.labels, sample.value) for sample in parsed["dpadmm_site_silent"].samples] == [({"site": name}, 1.0)]


def test_all_metrics_are_documented():
    text = OPERATIONS.read_text(encoding="utf-8")
    assert {name for name in HELP if not re.search(rf"dpadmm_{name}\b", text)} == set()
