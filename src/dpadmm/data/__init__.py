"""Getting data in: named data sets, tables, made-up data, and who owns which rows."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpadmm.data.dataset import Dataset, encode_labels
from dpadmm.data.datasets.synthetic import synthetic
from dpadmm.data.partition import Partition, by_group, equal, holdout, label_skewed, unequal

if TYPE_CHECKING:
    from dpadmm.data.datasets.adult import load_adult
    from dpadmm.data.tables import read_table

__all__ = [
    "Dataset", "Partition", "by_group", "encode_labels", "equal", "holdout", "label_skewed", "load_adult",
    "read_table", "synthetic", "unequal",
]  # fmt: skip

_LATER = {"load_adult": "dpadmm.data.datasets.adult", "read_table": "dpadmm.data.tables"}
"""Readers of tables come when they are asked for: pyarrow takes a tenth of a second and 40 MB."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
