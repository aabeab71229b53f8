"""What an equation of JAX computes, as a function of NumPy; None where there is no such rule.

A rule is made once for an equation, whose parameters it reads, and called with its operands.
Primitives that are missing here are evaluated by JAX itself: slower, and right.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from scipy import special

from jaxpipe.jaxpr.flatten import Equation, Variable
from jaxpipe.jaxpr.numpy_gather import gather_rule, scatter_add_rule
from jaxpipe.jaxpr.numpy_random import RANDOM_RULES, is_threefry

Rule = Callable[..., Any]
"""Returns the result of an equation, or a sequence of them where its primitive has several."""


def _logistic(x: np.ndarray) -> np.ndarray:
    # From the side where the exponential does not overflow.
    decayed = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, decayed) / (1 + decayed)


_ELEMENTWISE: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "abs": np.abs,
        "add": np.add,
        "add_any": np.add,
        "and": np.bitwise_and,
        "ceil": np.ceil,
        "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
        "copy": np.array,
        "copy_p": np.array,
        "cos": np.cos,
        "eq": np.equal,
        "erf": special.erf,
        "erf_inv": special.erfinv,
        "erfc": special.erfc,
        "exp": np.exp,
        "expm1": np.expm1,
        "floor": np.floor,
        "ge": np.greater_equal,
        "gt": np.greater,
        "is_finite": np.isfinite,
        "le": np.less_equal,
        "log": np.log,
        "log1p": np.log1p,
        "logistic": _logistic,
        "lt": np.less,
        "max": np.maximum,
        "min": np.minimum,
        "mul": np.multiply,
        "name": np.array,
        "ne": np.not_equal,
        "neg": np.negative,
        "not": np.invert,
        "or": np.bitwise_or,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "sin": np.sin,
        "sqrt": np.sqrt,
        "square": np.square,
        "stop_gradient": np.array,
        "sign": np.sign,
        "sub": np.subtract,
        "tanh": np.tanh,
        "xor": np.bitwise_xor,
    }
)
_OF_FLOATS: Final[Mapping[str, Rule]] = MappingProxyType({"div": np.divide, "pow": np.power})
"""Of integers, NumPy computes something else."""


def numpy_rule(equation: Equation) -> Rule | None:
    """Return the function of NumPy that computes an equation, if there is one."""
    name = equation.primitive
    if not all(map(has_numpy_dtype, (*equation.operands, *equation.results))):
        return None
    if name in _ELEMENTWISE:
        return _ELEMENTWISE[name]
    if name in _OF_FLOATS:
        is_float = equation.operands[0].aval.dtype.kind == "f"
        return _OF_FLOATS[name] if is_float else None
    make = RANDOM_RULES.get(name) or _OF_PARAMETERS.get(name)
    return None if make is None else make(equation)


def has_numpy_dtype(variable: Variable) -> bool:
    """Return whether NumPy has the values of a variable: not of 16-bit floats, nor of all keys."""
    dtype = variable.aval.dtype
    return dtype.kind in "biuf" if isinstance(dtype, np.dtype) else is_threefry(dtype)


def _axes(reduce: Rule) -> Callable[[Equation], Rule]:
    """Return what makes the rule of a reduction over some axes."""

    def make(equation: Equation) -> Rule:
        axes = tuple(equation.params["axes"])
        dtype = equation.results[0].aval.dtype
        return lambda x: reduce(x, axis=axes).astype(dtype, copy=False)

    return make


def _accumulated(accumulate: Rule) -> Callable[[Equation], Rule]:
    """Return what makes the rule of a cumulative reduction."""

    def make(equation: Equation) -> Rule:
        axis, is_reversed = equation.params["axis"], equation.params["reverse"]
        dtype = equation.results[0].aval.dtype

        def rule(x: np.ndarray) -> np.ndarray:
            given = np.flip(x, axis) if is_reversed else x
            sums = accumulate(given, axis=axis, dtype=dtype)
            return np.flip(sums, axis) if is_reversed else sums

        return rule

    return make


def _broadcast(equation: Equation) -> Rule | None:
    if len(equation.operands) != 1:  # of a shape that is known when it runs
        return None
    shape, dims = equation.params["shape"], equation.params["broadcast_dimensions"]
    operand = equation.operands[0].aval
    aligned = [1] * len(shape)
    for size, dim in zip(operand.shape, dims, strict=True):
        aligned[dim] = size
    return lambda x: np.broadcast_to(np.reshape(x, aligned), shape)


def _convert(equation: Equation) -> Rule:
    dtype = equation.results[0].aval.dtype
    return lambda x: np.asarray(x).astype(dtype, copy=False)


def _reshape(equation: Equation) -> Rule:
    shape = equation.results[0].aval.shape
    return lambda x: np.reshape(x, shape)


def _transpose(equation: Equation) -> Rule:
    permutation = equation.params["permutation"]
    return lambda x: np.transpose(x, permutation)


def _slice(equation: Equation) -> Rule:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    index = tuple(map(slice, starts, limits, strides))
    return lambda x: x[index]


def _concatenate(equation: Equation) -> Rule:
    axis = equation.params["dimension"]
    return lambda *arrays: np.concatenate(arrays, axis=axis)


def _split(equation: Equation) -> Rule:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    ends = np.cumsum(sizes)[:-1].tolist()
    return lambda x: np.split(x, ends, axis=axis)


def _pad(equation: Equation) -> Rule | None:
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 for low, high, _ in config):
        return None
    shape = equation.results[0].aval.shape
    index = tuple(
        slice(low, size - high, inside + 1)
        for size, (low, high, inside) in zip(shape, config, strict=True)
    )

    def rule(x: np.ndarray, value: np.ndarray) -> np.ndarray:
        padded = np.full(shape, value)
        padded[index] = x
        return padded

    return rule


def _reverse(equation: Equation) -> Rule:
    dims = tuple(equation.params["dimensions"])
    return lambda x: np.flip(x, dims)


def _iota(equation: Equation) -> Rule | None:
    if equation.operands:
        return None
    aval, dim = equation.results[0].aval, equation.params["dimension"]
    sizes = [1] * len(aval.shape)
    sizes[dim] = aval.shape[dim]
    counted = np.arange(aval.shape[dim], dtype=aval.dtype).reshape(sizes)
    return lambda: np.broadcast_to(counted, aval.shape)


def _power(equation: Equation) -> Rule:
    exponent = equation.params["y"]
    if exponent >= 0:
        return lambda x: np.asarray(x) ** exponent
    return lambda x: 1 / np.asarray(x) ** -exponent


def _select(equation: Equation) -> Rule | None:
    if equation.operands[0].aval.dtype != np.bool_:
        return None
    return lambda which, no, yes: np.where(which, yes, no)


def _argmax(equation: Equation) -> Rule:
    (axis,), dtype = equation.params["axes"], equation.params["index_dtype"]
    return lambda x: np.argmax(x, axis=axis).astype(dtype)


def _bitcast(equation: Equation) -> Rule | None:
    operand, result = equation.operands[0].aval.dtype, equation.results[0].aval.dtype
    if operand.itemsize != result.itemsize:
        return None
    return lambda x: np.ascontiguousarray(x).view(result).reshape(np.shape(x))


def _reduce_precision(equation: Equation) -> Rule | None:
    info = np.finfo(equation.results[0].aval.dtype)
    bits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    return np.array if bits == (info.nexp, info.nmant) else None


def _top_k(equation: Equation) -> Rule | None:
    operand, k = equation.operands[0].aval, equation.params["k"]
    if equation.params.get("axis", operand.ndim - 1) != operand.ndim - 1:
        return None

    def rule(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-x, axis=-1, kind="stable")[..., :k]  # of equal values the first
        return np.take_along_axis(x, order, axis=-1), order.astype(np.int32)

    return rule if operand.dtype.kind == "f" else None


def _shift(equation: Equation) -> Rule | None:
    return np.right_shift if equation.operands[0].aval.dtype.kind == "u" else None


def _starts(sizes: tuple[int, ...], shape: tuple[int, ...], starts: Any) -> tuple[slice, ...]:
    """Return the part at some positions, moved so that it is inside, as JAX does."""
    index = []
    for size, length, start in zip(sizes, shape, starts, strict=True):
        first = min(max(int(start), 0), length - size)
        index.append(slice(first, first + size))
    return tuple(index)


def _dynamic_slice(equation: Equation) -> Rule:
    sizes = tuple(equation.params["slice_sizes"])
    return lambda x, *starts: x[_starts(sizes, x.shape, starts)]


def _dynamic_update_slice(_: Equation) -> Rule:
    def rule(x: np.ndarray, update: np.ndarray, *starts: Any) -> np.ndarray:
        changed = np.array(x)
        changed[_starts(update.shape, x.shape, starts)] = update
        return changed

    return rule


def _dot(equation: Equation) -> Rule:
    (summed, batch), out = equation.params["dimension_numbers"], equation.results[0].aval
    left, right = (operand.aval for operand in equation.operands)
    first = list(range(left.ndim))
    second = list(range(left.ndim, left.ndim + right.ndim))
    for contracted in (summed, batch):
        for dim, other in zip(*contracted, strict=True):
            second[other] = first[dim]
    # A result has the batch, then what remains of the left, then what remains of the right.
    rest = [n for dim, n in enumerate(first) if dim not in (*summed[0], *batch[0])]
    rest += [n for dim, n in enumerate(second) if dim not in (*summed[1], *batch[1])]
    result = [first[dim] for dim in batch[0]] + rest
    return lambda x, y: np.einsum(x, first, y, second, result).astype(out.dtype, copy=False)


_OF_PARAMETERS: Final[Mapping[str, Callable[[Equation], Rule | None]]] = MappingProxyType(
    {
        "argmax": _argmax,
        "bitcast_convert_type": _bitcast,
        "broadcast_in_dim": _broadcast,
        "concatenate": _concatenate,
        "convert_element_type": _convert,
        "cummax": _accumulated(np.maximum.accumulate),
        "cumsum": _accumulated(np.cumsum),
        "dot_general": _dot,
        "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update_slice,
        "gather": gather_rule,
        "integer_pow": _power,
        "iota": _iota,
        "optimization_barrier": lambda _: lambda *arrays: arrays,
        "pad": _pad,
        "reduce_and": _axes(np.all),
        "reduce_max": _axes(np.max),
        "reduce_min": _axes(np.min),
        "reduce_or": _axes(np.any),
        "reduce_precision": _reduce_precision,
        "reduce_prod": _axes(np.prod),
        "reduce_sum": _axes(np.sum),
        "reshape": _reshape,
        "rev": _reverse,
        "scatter-add": scatter_add_rule,
        "round": lambda e: (
            np.rint if e.params["rounding_method"].name == "TO_NEAREST_EVEN" else None
        ),
        "select_n": _select,
        "shift_right_logical": _shift,
        "slice": _slice,
        "split": _split,
        "squeeze": _reshape,
        "stack": lambda e: lambda *arrays: np.stack(arrays, axis=e.params["axis"]),
        "top_k": _top_k,
        "transpose": _transpose,
    }
)
