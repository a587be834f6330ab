"""Valid inputs of every reader as a starting point. Keys are generated and discarded."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.accounting.report import AgentReleases, PrivacyReport, ReleaseCounts
from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Schema
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import make_request
from dpadmm.federation.offers import Offer
from dpadmm.federation.protocol import HEAD, Kind, Message, packed
from dpadmm.methods import Released, StatisticsRelease
from dpadmm.models.description import Description
from dpadmm.models.model import Model
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from fuzz.parsers import ROSTER, SHAPE, SMALL_STUDY, STUDY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_VALUES = np.arange(6.0).reshape(SHAPE) / 7.0
_LIMITS = """
[limits]
epsilon = 1.0
delta = 1e-6
methods = ["dp_admm", "dp_sgd"]
losses = ["logistic", "softmax"]
max_rounds = 1000
min_rows = 100
"""
_SITE = """\
format = "dpadmm-site/2"
ledger = "ledger"
[data]
table = "table.csv"
label = "y"
[person]
rows = 1
"""
_STUDY = """\
format = "dpadmm-study/2"
name = "flu"
features = ["age", "fever"]
classes = ["no", "yes"]
allow_missed_rounds = true
quorum = 2
deadline = 60.0
[privacy]
epsilon = 1.0
delta = 1e-6
"""
_COLUMNS = """\
format = "dpadmm-study/2"
name = "c"
row_norm = 1.5
[label]
column = "cost"
bounds = [0, 10]
public = true
[columns.age]
kind = "number"
bounds = [1, 120]
bins = [40, 60]
transform = "log"
[columns.ward_id]
kind = "category"
values = ["a", "b"]
allow = true
[columns.stage]
kind = "ordinal"
values = ["I", "II"]
missing = "indicator"
[columns.smoker]
kind = "boolean"
[method]
name = "dp_admm"
rho = 0.2
[loss]
name = "huber"
[privacy]
noise_multiplier = 20.0
[provenance]
method.rho = "public"
"""
_TABLE = 'database = "postgresql://reader@db/x?sslmode=require"\ntable = "public.visits"\norder_by = "visit desc"\n'
_GRID = """\
format = 1
title = "t"
data = "synthetic"
label = "y"
classes = ["no", "yes"]
repeats = 2
first_seed = 1
[shared]
n_agents = 5
delta = 1e-3
[experiments.a]
title = "A"
[[experiments.a.runs]]
method = "dp_admm"
epsilon = [0.5, 1.0]
[[experiments.a.runs]]
method = "centralized"
timed = true
repeats = 1
"""
_SIMULATE = """\
data = "adult"
label = "y"
classes = ["no", "yes"]
epsilon = [1.0, 2.0]
agents = 2
rounds = 5
seed = 3
"""
_SERVER = """\
format = "dpadmm-server/1"
listen = "0.0.0.0"
port = 4222
hosts = ["study.example.org", "192.0.2.7"]
"""
_DICTIONARY = """\
name,kind,low,high,values,description,role,transform,missing
age,number,1,120,,"years, whole",,log,indicator
ward,category,,,a|b|other,,,,
stage,ordinal,,,I|II,,,,
patient_id,text,,,,,out,,
ill,category,,,no|yes,,label,,
"""


def seeds() -> dict[str, list[bytes]]:
    """Return valid inputs by reader."""
    with tempfile.TemporaryDirectory() as place:
        return {**_messages(), **_texts(), **_json(Path(place)), **_archives(Path(place))}


def _messages() -> dict[str, list[bytes]]:
    down = [Message(Kind.CALL, STUDY), Message(Kind.REQUEST, STUDY, 4, _VALUES), Message(Kind.END, STUDY, 9)]
    up = [
        Message(Kind.PRESENT, STUDY, digest="cd" * 32, n_rows=12, rows_per_person=2),
        Message(Kind.UPLOAD, STUDY, 4, -_VALUES, "cd" * 32, 12, 2),
        Message(Kind.REFUSED, STUDY, digest="cd" * 32, code="round-forked"),
    ]
    tags = bytes(range(8 * ROSTER))
    masked_up = [
        up[0]._replace(body=tags),
        Message(Kind.READY, STUDY, 4, None, "cd" * 32, 12, 2, body=tags),
        Message(Kind.MASKED, STUDY, 4, None, "cd" * 32, 12, 2, masked=np.arange(6).reshape(SHAPE) - 2**62),
        up[2],
    ]
    masked_down = [*down, Message(Kind.MASK, STUDY, 4, digest="cd" * 32, body=b"\xff\x03")]
    kinds = {"to-site": down, "from-site": up, "masked-to-site": masked_down, "masked-from-site": masked_up}
    return {f"messages/{name}": [*map(packed, messages)] for name, messages in kinds.items()}


def edges() -> dict[str, list[bytes]]:
    """Return inputs by reader that always stay in the corpus: messages with one field changed."""
    return {name: [new for message in messages for new in _changed(message)] for name, messages in _messages().items()}


def _changed(message: bytes) -> Iterator[bytes]:
    fields = list(HEAD.unpack_from(message))
    for i, value in enumerate(fields):
        other = value + 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
        yield HEAD.pack(*fields[:i], other, *fields[i + 1 :]) + message[HEAD.size :]


def _texts() -> dict[str, list[bytes]]:
    template = files("dpadmm.studies").joinpath("templates", "study.toml").read_text(encoding="utf-8")
    short = "".join(line for line in template.splitlines(keepends=True) if not line.startswith("#"))
    drafted = _COLUMNS.replace("public = true", "public = false")
    texts = {
        "toml/site": [_SITE + 'column = "p"\n' + _LIMITS, "local_metrics = true\n" + _SITE + _LIMITS],
        "toml/table": [_TABLE, _TABLE.replace("table", "query").replace('"visit desc"', '["a", "b"]')],
        "toml/study": [_STUDY, _COLUMNS, short],
        "toml/study-check": [_STUDY, _COLUMNS, short, drafted],
        "toml/grid": [_GRID, _GRID.replace("n_agents = 5", "").replace("label", 'by = "h"\nlabel')],
        "toml/simulate": [_SIMULATE],
        "toml/server": [_SERVER],
        "csv/dictionary": [_DICTIONARY],
    }
    return {name: [item.encode() for item in texts_of_kind] for name, texts_of_kind in texts.items()}


def _schema_study() -> Study:
    columns = (
        Number("age", (1, 120), "log", missing="indicator"),
        Category("ward", ("a", "b")),
        Ordinal("stage", ("I", "II")),
        Boolean("smoker"),
    )
    return Study(
        name="s", schema=Schema(columns), label=Label("ill", classes=("no", "yes")),
        training={"epsilon": 1.0, "delta": 1e-6},
    )  # fmt: skip


def _json(folder: Path) -> dict[str, list[bytes]]:
    authority = Authority.create(folder / "aggregator", hosts=["study.example.org"], port=4222)
    request = make_request(folder / "site", "north")
    invitation = authority.approve(request, days=3650)
    approvals = json.loads((folder / "aggregator" / "sites" / "north.json").read_text())
    moments = {"expires": NOW + timedelta(days=365), "approved_at": NOW, "revoked_at": NOW}
    for line in approvals["certificates"]:
        line.update({name: moment.isoformat() for name, moment in moments.items()})
        line.update(serial="ab" * 16, fingerprint=":".join(["AB"] * 32))
    study = _schema_study()
    releases = AgentReleases((ReleaseCounts(Release(20.0, statistic="mean gradient"), 100, 50, 100),), 2)
    report = PrivacyReport(
        [releases] * 2, [400, 90], 1e-5, "dp_admm", exact_noise=True, names=["north", "south"], study="a study",
        study_hash="ab" * 32, version="0.1.0",
    )  # fmt: skip
    decision = {"format": "dpadmm-decision/1", "decision": "accepted", "at": NOW.isoformat()}
    status = {
        "running": True, "pid": 4194304, "connected": True, "site": "north",
        "broker": "tls://study.example.org:4222", "pages": [],
        "certificate_expires": NOW.isoformat(), "at": NOW.isoformat(), "connection_since": NOW.isoformat(),
        "server_silent": False, "clock_difference": 0.1, "ledger_works": True,
        "lease": "held", "contested": False, "problems": [],
        "studies": [{"name": "flu", "hash": "ab" * 32, "state": "active", "reason": None,
                     "last_round": 3, "n_rounds": 100, "asked_at": NOW.isoformat(), "deadline_at": None}],
    }  # fmt: skip
    tables: dict[str, list[Any]] = {
        "json/decision": [decision | {"study": study.as_json()}, decision | {"study": SMALL_STUDY}],
        "json/approvals": [approvals],
        "json/status": [status],
        "json/journal": [study.as_json(), SMALL_STUDY],
        "json/model": [_about(study), _about(None)],
        "json/description": [_description()],
    }
    texts = {name: [json.dumps(value, indent=0).encode() for value in values] for name, values in tables.items()}
    return {
        **texts,
        "json/request": [request.as_bytes()],
        "json/invitation": [invitation.as_bytes()],
        "json/offer": [Offer("north", "ab" * 32, "cd" * 32).as_bytes()],
        "json/privacy-report": [report.to_bytes()],
    }


def _description() -> dict[str, Any]:
    """Return private statistics of two columns."""
    method = StatisticsRelease(tables=(("age", "smoker"),), bins=2)
    training = Training(method=method, noise_multiplier=5.0)
    study = Study(name="counts", schema=Schema((Number("age", (0, 120)), Boolean("smoker"))), training=training)
    released = Released(90, 10.0, 20.0 * np.arange(study.shape[0]) / study.shape[0])
    return Description(study, released, False, {"epsilon": 1.0, "delta": 1e-5}).to_dict()


def _about(study: Study | None) -> dict[str, Any]:
    """Return the JSON of a model file for weights of shape (3, 1)."""
    schema = Schema((Number("age", (0, 120)), Boolean("smoker"), Boolean("male")))
    label = Label("ill", classes=("no", "yes"))
    model = Model(
        np.ones((3, 1)), "binary", "logistic", classes=("no", "yes"), feature_names=("age", "smoker", "male"),
        schema=schema if study else None, label=label if study else None,
        study=study.as_json() if study else {}, version="0.1.0",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, np.load(model.save(Path(folder, "m"))) as archive:
        about: dict[str, Any] = json.loads(str(archive["about"]))
    return about


def _archives(folder: Path) -> dict[str, list[bytes]]:
    bare = Model(np.ones((3, 1)), "regression", "huber", feature_names=("a", "b", "c"), version="0.1.0")
    out = {"zip/model": [bare.save(folder / "bare").read_bytes()], "zip/table": []}
    parts = {
        "data": np.ones(2),
        "indices": np.array([0, 1]),
        "indptr": np.array([0, 1, 2]),
        "shape": np.array([2, 2]),
    }
    for arrays in ({"features": np.ones((2, 2)), "groups": np.array(["a", "b"])}, parts):
        whole = io.BytesIO()
        np.savez_compressed(whole, allow_pickle=False, labels=np.array([0, 1]), **arrays)
        out["zip/table"].append(whole.getvalue())
    return out
