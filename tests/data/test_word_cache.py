"""Cells are not stored beyond the processing of their table: no process-wide cache keeps them."""

from __future__ import annotations

import gc
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpadmm.data import cells
from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import Boolean, Category, Label, Ordinal, Schema
from dpadmm.data.survey import survey_table
from dpadmm.data.table import encode_table
from dpadmm.models.model import Model

MANY = tuple(f"place {i}" for i in range(2 * cells.MAX_CACHED_WORDS))
COLUMNS = (Category("sex", ("f", "m")), Ordinal("stage", ("1", "2")), Boolean("old"), Category("town", MANY))
SCHEMA = Schema(COLUMNS)
LABEL = Label("y", classes=("no", "yes"))
N = len(MANY) + 40
"""Rows of a batch."""


def reachable() -> Iterator[Any]:
    """Return all objects reachable from dpadmm's modules: caches of functions, attributes of classes, defaults."""
    modules = list(sys.modules.items())
    waiting: list[Any] = [vars(each) for name, each in modules if name.partition(".")[0] == "dpadmm"]
    seen = {id(vars(each)) for _, each in modules if isinstance(each, ModuleType)}
    while waiting:
        here = waiting.pop()
        names = list(here) if isinstance(here, dict) else []  # the collector passes over keys that are text
        for each in (*names, *gc.get_referents(here)):
            # The compiler and pytest's import hook lead to pytest's own frames and fixtures
            is_outside = str(type(each).__module__).startswith(("numba", "llvmlite", "_pytest"))
            if id(each) not in seen and not isinstance(each, ModuleType) and not is_outside:
                seen.add(id(each))
                waiting.append(each)
                yield each


def holding(word: str) -> list[str]:
    """Return the kinds of reachable objects that contain a word."""
    gc.collect()
    return [type(each).__name__ for each in reachable() if word in text_of(each)]


def text_of(each: Any) -> str:
    if isinstance(each, str):
        return each
    if isinstance(each, pa.Buffer | bytes | bytearray):
        return bytes(each).decode("latin-1")
    if isinstance(each, np.ndarray):
        return str(each.tolist()) if each.dtype.kind in "OUS" else ""
    tables = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)
    return str(each.to_pylist()) if isinstance(each, tables) else ""


@pytest.fixture
def secret() -> str:
    return f"cell-{secrets.token_hex(12)}"


def write(path: Path, secret: str, *, known_labels: bool) -> Path:
    """Write two batches. The secret is in every text column, with few and with many other words."""
    words = {"sex": "fm", "stage": "12", "old": ("yes", "no"), "town": MANY, "y": ("no", "yes")}
    columns = {
        name: [secret if i % N == 3 else values[i % len(values)] for i in range(2 * N)]
        for name, values in words.items()
    }
    if known_labels:
        columns["y"] = ["no", "yes"] * N
    pq.write_table(pa.table(columns), path, row_group_size=N)
    return path


def test_search_finds_cached_cells(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert holding(secret) == []
    kept = cells.lru_cache(lambda values: {})
    monkeypatch.setattr(cells, "kept", kept, raising=False)
    kept("public")[secret] = 1
    assert holding(secret) == ["str"]
    kept("public").clear()
    kept("public")["last"] = (pa.array(["x", secret]), np.zeros(2))
    assert holding(secret) == ["StringArray"]


@pytest.mark.parametrize("work", ["encode", "encode totally", "survey", "predict"])
def test_no_cell_is_kept_after_its_table_is_processed(secret: str, work: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", secret, known_labels=work == "encode")
    if work.startswith("encode"):
        made = encode_table(path, SCHEMA, LABEL, invalid_as_missing=work == "encode totally")
        assert made.report.columns["town"].unknown == made.report.columns["sex"].unknown == 2
        del made
    elif work == "survey":
        assert survey_table(path, SCHEMA, LABEL).label.unknown == 2
    else:
        weights = np.ones((len(SCHEMA.features), 1))
        model = Model(weights, "binary", "logistic", schema=SCHEMA, feature_names=SCHEMA.features)
        assert len(model.predict_table(path)) == 2 * N
    assert holding(secret) == []


def test_concurrent_tables_have_separate_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same column and values, and enough words to empty a cache repeatedly."""
    monkeypatch.setattr(cells, "MAX_CACHED_WORDS", 2)
    schema, wrong = Schema((Category("c", ("left", "right")),)), []

    def encode(own: str, place: int) -> None:
        try:
            encoder = Encoder(schema)
            for k in range(1500):
                found = encoder.encode(pa.record_batch({"c": [f"{own} {k}", own, own]}))
                if np.argmax(found, axis=1).tolist() != [2, place, place]:
                    wrong.append(found)
            assert encoder.report.columns["c"].unknown == 1500
        except Exception as error:  # told by the thread that waits
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=encode, args=pair) for pair in (("left", 0), ("right", 1))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
