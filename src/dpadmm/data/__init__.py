"""Data sets, tables, synthetic rows, and the assignment of rows to agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpadmm.data.dataset import Dataset, encode_labels
from dpadmm.data.datasets.synthetic import synthetic
from dpadmm.data.partition import Partition, by_group, equal, holdout, label_skewed, unequal

if TYPE_CHECKING:
    from dpadmm.data.dataset_file import read_table
    from dpadmm.data.datasets.adult import load_adult

__all__ = [
    "Dataset", "Partition", "by_group", "encode_labels", "equal", "holdout", "label_skewed", "load_adult",
    "read_table", "synthetic", "unequal",
]  # fmt: skip

_LAZY_IMPORTS = {"load_adult": "dpadmm.data.datasets.adult", "read_table": "dpadmm.data.dataset_file"}
"""Readers of tables import pyarrow, which takes 0.1 s and 40 MB, so they are imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_IMPORTS[name]), name)
