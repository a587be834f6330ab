"""Vectors of four float64 numbers in compiled functions, for loops that the compiler does not vectorise.

The compiler vectorises an innermost loop only if its indices are not looked up. A vector can be loaded, stored, added
and multiplied. The compiler splits it if the processor has no vectors.

The compiler's cache of a function does not depend on this file (:mod:`dpadmm.kernels.compiler`). Clear the cache after
a change.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types as nbt
from numba.extending import intrinsic, models, overload, register_model

WIDTH = 4

_intrinsic: Any = intrinsic  # typed as if the compiler's context were an argument of the call
_FLAGS = ("contract",)
_LLVM = ir.VectorType(ir.DoubleType(), WIDTH)


class Vector(nbt.Type):
    def __init__(self) -> None:
        super().__init__(name="Vector4")


VECTOR = Vector()


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, described: Any) -> None:
        super().__init__(manager, described, _LLVM)


def _stored(kind):  # type: ignore[no-untyped-def]
    """Return the LLVM type of four entries of an array of this kind."""
    return _LLVM if kind.dtype == nbt.float64 else ir.VectorType(ir.FloatType(), WIDTH)


def _place(context, builder, kind, array, index):  # type: ignore[no-untyped-def]
    """Return a pointer to the vector that starts at ``array[index]`` of a contiguous one-dimensional array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _stored(kind).as_pointer())


@_intrinsic
def load(typing, array, index):  # type: ignore[no-untyped-def]
    """Return ``array[index : index + 4]`` of float64 or float32 numbers, without bounds check."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        loaded = builder.load(_place(context, builder, kind, *args), align=kind.dtype.bitwidth // 8)
        return loaded if loaded.type == _LLVM else builder.fpext(loaded, _LLVM)

    return (VECTOR(array, nbt.uint64), generate) if array.dtype in (nbt.float64, nbt.float32) else None


@_intrinsic
def store(typing, array, index, vector):  # type: ignore[no-untyped-def]
    """Set ``array[index : index + 4] = vector``, without bounds check."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[2], _place(context, builder, signature.args[0], *args[:2]), align=8)
        return context.get_dummy_value()

    return nbt.void(array, nbt.uint64, VECTOR), generate


@_intrinsic
def four_times(typing, number):  # type: ignore[no-untyped-def]
    """Return a vector of four equal numbers."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        first = builder.insert_element(ir.Constant(_LLVM, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH))

    return VECTOR(nbt.float64), generate


def _arithmetic(name: str) -> Any:
    @_intrinsic
    def apply(typing, one, two):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return getattr(builder, name)(*args, flags=_FLAGS)

        return VECTOR(VECTOR, VECTOR), generate

    return apply


_add, _multiply = _arithmetic("fadd"), _arithmetic("fmul")


@overload(operator.add)
@overload(operator.iadd)
def _added(one, two):  # type: ignore[no-untyped-def]
    return (lambda one, two: _add(one, two)) if one == two == VECTOR else None


@overload(operator.mul)
@overload(operator.imul)
def _multiplied(one, two):  # type: ignore[no-untyped-def]
    return (lambda one, two: _multiply(one, two)) if one == two == VECTOR else None


@_intrinsic
def transposed(typing, a, b, c, d):  # type: ignore[no-untyped-def]
    """Return the columns of four vectors."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        def mixed(one, two, *places):  # type: ignore[no-untyped-def]
            return builder.shuffle_vector(one, two, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), list(places)))

        a, b, c, d = args
        ab, cd = (mixed(one, two, 0, 4, 2, 6) for one, two in ((a, b), (c, d)))  # their columns 0 and 2
        ba, dc = (mixed(one, two, 1, 5, 3, 7) for one, two in ((a, b), (c, d)))  # 1 and 3
        columns = [mixed(one, two, *at) for at in ((0, 1, 4, 5), (2, 3, 6, 7)) for one, two in ((ab, cd), (ba, dc))]
        return context.make_tuple(builder, signature.return_type, columns)

    return nbt.UniTuple(VECTOR, 4)(VECTOR, VECTOR, VECTOR, VECTOR), generate
