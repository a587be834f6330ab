"""Export a model as an ONNX file that predicts from raw columns.

Inputs: one per column of the study, of shape (rows, 1). Numbers are doubles; NaN is a missing value. Categories,
ordinals and booleans are text without surrounding blanks; "" is a missing value. Booleans are lower case, upper case or
capitalised. A model without a schema has one input, ``features`` (rows, d).

Outputs: ``output_label`` and ``output_probability``; ``output_label`` and ``output_score`` for a loss without
probabilities; or ``output_number`` in the units of the label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.data.encoder import FALSE, TRUE
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Schema
from dpadmm.errors import DataError
from dpadmm.files.atomic import atomic_file
from dpadmm.models.file import require_finite
from dpadmm.models.model import Model

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ModuleNotFoundError:
    raise DataError("to_onnx() needs onnx; install it with: pip install 'dpadmm[onnx]'") from None

OPSETS = {"": 18, "ai.onnx.ml": 3}
IR_VERSION = 9
OUTPUTS = ("output_label", "output_probability", "output_score", "output_number")


def to_onnx(model: Model, path: Path) -> Path:
    """Write the ONNX file of a model, atomically. Return the path."""
    require_finite({"weights": model.weights}, f"{path} was not written")
    graph = _Graph()
    if model.schema is not None:
        features = _encoded(graph, model.schema.normalized())
    else:
        features = graph.input("features", "double", model.n_features)
        features = _clip(graph, features, "double", 2.0**-50) if model.clip else features
    coefficients, constants = model.coefficients
    scores = graph.add("MatMul", graph.to("double", features), graph.constant(coefficients.T))
    scores = graph.add("Add", scores, graph.constant(constants[None]))
    _answers(graph, model, scores)
    onnx_model = helper.make_model(
        helper.make_graph(graph.nodes, "dpadmm", graph.inputs, graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in OPSETS.items()],
        ir_version=IR_VERSION,
        producer_name="dpadmm",
        producer_version=model.version,
    )
    about = {"study_hash": model.study_hash, "epsilon": model.privacy.get("epsilon")}
    helper.set_model_props(onnx_model, {name: str(value) for name, value in about.items() if value})
    onnx.checker.check_model(onnx_model)
    with atomic_file(path) as out:
        out.write(onnx_model.SerializeToString())
    return path


class _Graph:
    """Nodes in the order of their creation. The names of values cannot be those of columns."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"\x01{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(self, values: Any) -> str:
        name = f"\x02{len(self.constants)}"
        array = np.asarray(values)
        if array.dtype.kind == "U":
            array = array.astype(object)
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def to(self, kind: str, value: str) -> str:
        return self.add("Cast", value, to=getattr(TensorProto, kind.upper()))

    def input(self, name: str, kind: str, width: int) -> str:
        if name in OUTPUTS:
            raise DataError(f"column {name!r} has the name of an output of the ONNX file; rename it first")
        kind_code = getattr(TensorProto, kind.upper())
        self.inputs.append(helper.make_tensor_value_info(name, kind_code, ["rows", width]))
        return name

    def output(self, value: str, name: str, kind: str, width: int | None = None) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        shape: list[str | int | None] = ["rows"] if width is None else ["rows", width]
        self.outputs.append(helper.make_tensor_value_info(name, getattr(TensorProto, kind.upper()), shape))


def _encoded(graph: _Graph, schema: Schema) -> str:
    """Encode columns like :class:`dpadmm.data.encoder.Encoder`: clamp, bin, scale and clip, in float32."""
    parts = {column.name: _floats(graph, _column(graph, column)) for column in schema.columns}
    for one, other in schema.interactions:
        left, right = (parts[one], graph.constant([2])), (parts[other], graph.constant([1]))
        products = graph.add("Mul", graph.add("Unsqueeze", *left), graph.add("Unsqueeze", *right))
        parts[f"{one} × {other}"] = graph.add("Flatten", products)
    rows = graph.add("Concat", *parts.values(), axis=1)
    rows = graph.add("Div", rows, graph.constant(np.float32(schema.scale)))
    return _clip(graph, rows, "float", 2.0**-20)


def _floats(graph: _Graph, parts: list[str]) -> str:
    return graph.add("Concat", *[graph.to("float", part) for part in parts], axis=1)


def _clip(graph: _Graph, rows: str, kind: str, slack: float) -> str:
    """Clip rows to a norm of 1, less ``slack`` for rounding."""
    doubles = graph.to("double", rows)
    squares = graph.add("Mul", doubles, doubles)
    norm = graph.add("Sqrt", graph.add("ReduceSum", squares, graph.constant([1])))
    exceeds = graph.add("Greater", norm, graph.constant(1.0))
    factor = graph.add("Div", graph.constant(1.0 - slack), norm)
    factor = graph.add("Where", exceeds, factor, graph.constant(1.0))
    return graph.add("Mul", rows, graph.to(kind, factor))


def _column(graph: _Graph, column: Column) -> list[str]:
    if isinstance(column, Number):
        return _number(graph, column)
    if isinstance(column, Category):
        codes = _codes(graph, column.name, {value: i for i, value in enumerate(column.values)})
        unknown = graph.add("Less", codes, graph.constant(0))
        codes = graph.add("Where", unknown, graph.constant(len(column.values)), codes)
        return [_one_hot(graph, codes, len(column.features))]
    if isinstance(column, Ordinal):
        codes = _codes(graph, column.name, {value: i for i, value in enumerate(column.values)})
        return _steps(graph, codes, len(column.values) - 1, column)
    if isinstance(column, Boolean):
        words = {form(str(word)): i for i, group in enumerate((FALSE, TRUE)) for word in group
                 for form in (str.lower, str.upper, str.capitalize)}  # fmt: skip
        return _steps(graph, _codes(graph, column.name, words), 1, column)
    return [graph.input(column.name, "double", 1)]


def _number(graph: _Graph, column: Number) -> list[str]:
    cells = graph.input(column.name, "double", 1)
    missing = graph.add("Or", graph.add("IsNaN", cells), graph.add("IsInf", cells))
    low, high = column.bounds
    cells = graph.add("Where", missing, graph.constant(low), cells)
    cells = graph.add("Clip", cells, graph.constant(low), graph.constant(high))
    if column.bins:
        beyond = graph.add("GreaterOrEqual", cells, graph.constant([list(column.bins)]))
        codes = graph.add("ReduceSum", graph.to("int64", beyond), graph.constant([1]))
        codes = graph.add("Where", missing, graph.constant(len(column.bins) + 1), codes)
        return [_one_hot(graph, codes, len(column.features))]
    if column.transform == "log":
        cells = graph.add("Log", cells)
    if column.knots:
        return _hats(graph, column, cells, missing)
    center, scale = column.line
    value = graph.add("Div", graph.add("Sub", cells, graph.constant(center)), graph.constant(scale))
    return _with_missing(graph, value, missing, column)


def _hats(graph: _Graph, column: Number, cells: str, missing: str) -> list[str]:
    """Return the hat function of every node: the minimum of its rising and falling line, and 1 beyond the bounds."""
    nodes = np.array(column.nodes)
    steps = np.diff(nodes)
    rising = [nodes - np.append(steps[:1], steps), np.append(steps[:1], steps)]
    falling = [nodes + np.append(steps, steps[-1:]), np.append(steps, steps[-1:])]
    up = graph.add("Div", graph.add("Sub", cells, graph.constant(rising[0][None])), graph.constant(rising[1][None]))
    down = graph.add("Div", graph.add("Sub", graph.constant(falling[0][None]), cells), graph.constant(falling[1][None]))
    hats = graph.add("Max", graph.add("Min", up, down), graph.constant(0.0))
    return [graph.add("Where", missing, graph.constant(0.0), hats), missing]


def _codes(graph: _Graph, name: str, codes: dict[str, int]) -> str:
    """Return the code of every cell; −1 for unknown values."""
    return graph.add(
        "LabelEncoder",
        graph.input(name, "string", 1),
        domain="ai.onnx.ml",
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=-1,
    )


def _steps(graph: _Graph, codes: str, last: int, column: Column) -> list[str]:
    missing = graph.add("Less", codes, graph.constant(0))
    share = graph.add("Div", graph.to("double", codes), graph.constant(float(last)))
    value = graph.add("Sub", graph.add("Mul", share, graph.constant(2.0)), graph.constant(1.0))
    return _with_missing(graph, value, missing, column)


def _with_missing(graph: _Graph, value: str, missing: str, column: Column) -> list[str]:
    """Return the value, with 0 for missing cells, and the missing indicator if the column has one."""
    value = graph.add("Where", missing, graph.constant(0.0), value)
    return [value] if len(column.features) == 1 else [value, missing]


def _one_hot(graph: _Graph, codes: str, width: int) -> str:
    return graph.add("Equal", codes, graph.constant([list(range(width))]))


def _answers(graph: _Graph, model: Model, scores: str) -> None:
    if model.task == "count":
        rates = graph.add("Exp", graph.add("Add", scores, graph.constant(model.log_rate)))
        if model.weights.shape[1] > 1:  # hazards are per unit of time, so the lengths of intervals are times
            lengths = np.diff([0.0, *((model.label and model.label.times) or ())])
            hazard = graph.add("MatMul", rates, graph.constant(lengths[:, None]))
            rates = graph.add("Sub", graph.constant(1.0), graph.add("Exp", graph.add("Neg", hazard)))
        graph.output(graph.add("Squeeze", rates, graph.constant([1])), "output_number", "double")
        return
    if model.task == "regression":
        scale, shift = model.label_units
        scaled = graph.add("Mul", scores, graph.constant(scale))
        number = graph.add("Add", scaled, graph.constant(float(shift)))
        graph.output(graph.add("Squeeze", number, graph.constant([1])), "output_number", "double")
        return
    if model.task == "binary":
        positive = graph.add("Squeeze", scores, graph.constant([1]))
        codes = graph.to("int64", graph.add("Greater", positive, graph.constant(0.0)))
    else:
        codes = graph.add("ArgMax", scores, axis=1, keepdims=0)
    names = np.asarray(model.class_names)
    kind = {"U": "string", "i": "int64", "b": "bool", "f": "double"}[names.dtype.kind]
    graph.output(graph.add("Gather", graph.constant(names), codes), "output_label", kind)
    if not model.has_probabilities:
        graph.output(scores, "output_score", "double", model.weights.shape[1])
        return
    if model.task == "binary":
        probability = graph.add("Sigmoid", scores)
        probabilities = graph.add("Concat", graph.add("Sub", graph.constant(1.0), probability), probability, axis=1)
    else:
        probabilities = graph.add("Softmax", scores, axis=1)
    graph.output(probabilities, "output_probability", "double", len(model.class_names))
