"""Getting data in: named data sets, tables, made-up data, and who owns which rows."""

from dpadmm.data.adult import load_adult
from dpadmm.data.dataset import Dataset, encode_labels
from dpadmm.data.partition import Partition, by_group, equal, holdout, label_skewed, unequal
from dpadmm.data.synthetic import known_optimum, synthetic
from dpadmm.data.tables import read_table

__all__ = [
    "Dataset",
    "Partition",
    "by_group",
    "encode_labels",
    "equal",
    "holdout",
    "known_optimum",
    "label_skewed",
    "load_adult",
    "read_table",
    "synthetic",
    "unequal",
]
