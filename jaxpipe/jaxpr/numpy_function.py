"""A traced function that NumPy evaluates: nothing is lowered and nothing compiled.

To compile a small function takes XLA longer than to run it a hundred times. What does not depend on
arguments is computed once, when the function is traced.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.jaxpr.evaluate_equation import jax_rule
from jaxpipe.jaxpr.flatten import Equation, FlatJaxpr, Scan, Variable, flatten, live, varying
from jaxpipe.jaxpr.numpy_random import is_threefry
from jaxpipe.jaxpr.numpy_rules import numpy_rule


class NumpyFunction:
    """A function of arrays that JAX can trace; traced once for all arguments of the same shapes.

    Results are arrays of NumPy with memory of their own. The arguments at the positions `donated`
    have no value after a call, as if JAX had reused their memory: those of NumPy are NaN then.
    """

    def __init__(self, function: Callable, *, donated: Sequence[int] = ()) -> None:
        self._function = function
        self._donated = tuple(donated)
        self._traces: dict[Any, _Trace] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        given, structure = jax.tree.flatten(arguments)
        trace = self._traced(given, structure)
        leaves = [_to_numpy(leaf) for leaf in given]
        remains = trace.constants.union(map(id, leaves))
        arrays = _with_own_memory(trace.run(leaves), remains)
        results = [
            _key(array) if is_threefry(shape.dtype) else array
            for array, shape in zip(arrays, trace.results, strict=True)
        ]
        for position in self._donated:
            _forget(jax.tree.leaves(arguments[position]))
        return jax.tree.unflatten(trace.structure, results)

    def shapes(self, *arguments: Any) -> Any:
        """Return the shapes of the results for arguments of these shapes."""
        leaves, structure = jax.tree.flatten(arguments)
        trace = self._traced(leaves, structure)
        return jax.tree.unflatten(trace.structure, trace.results)

    def _traced(self, leaves: Sequence[Any], structure: Any) -> "_Trace":
        shapes = tuple(map(_shape, leaves))
        key = (structure, shapes)
        if key not in self._traces:
            arguments = jax.tree.unflatten(structure, shapes)
            closed, results = jax.make_jaxpr(self._function, return_shape=True)(*arguments)
            results, structure = jax.tree.flatten(results)
            flat = live(flatten(closed, unroll=False))
            slots = _Slots()
            run = _run_of(flat, slots)
            self._traces[key] = _Trace(
                run=run,
                results=tuple(results),
                structure=structure,
                constants=frozenset(map(id, slots.values)),
            )
        return self._traces[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """A traced function, its results' shapes and tree, and the identities of its constants."""

    run: Callable[[Sequence[Any]], list[Any]]
    results: tuple[Any, ...]
    structure: Any
    constants: frozenset[int]


@dataclass(slots=True)
class _Slots:
    """The position of each variable among the arrays of a call, and the values of constants."""

    values: list[Any] = field(default_factory=list)
    of: dict[Variable, int] = field(default_factory=dict)

    def read(self, variable: Variable) -> int:
        """Return the position of a variable that has one, or is a constant."""
        if variable not in self.of:
            assert variable.is_constant, variable
            self.add(variable, _to_numpy(variable.value))
        return self.of[variable]

    def add(self, variable: Variable, value: Any = None) -> int:
        """Return a position for a variable."""
        self.of[variable] = len(self.values)
        self.values.append(value)
        return self.of[variable]


def _run_of(flat: FlatJaxpr, slots: _Slots) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what evaluates a flat jaxpr, given its arguments."""
    arguments = [slots.add(variable) for variable in flat.arguments]
    depends = varying(flat)
    steps = []
    for equation in flat.equations:
        inputs = [slots.read(variable) for variable in equation.operands]
        outputs = [slots.add(variable) for variable in equation.results]
        compute = _rule(equation)
        if depends.isdisjoint(equation.operands):
            for slot, value in zip(
                outputs, compute(*(slots.values[n] for n in inputs)), strict=True
            ):
                slots.values[slot] = value
        else:
            steps.append((compute, inputs, outputs))
    results = [slots.read(variable) for variable in flat.results]

    def run(given: Sequence[Any]) -> list[Any]:
        values = list(slots.values)  # threads may evaluate it at the same time
        for slot, value in zip(arguments, given, strict=True):
            values[slot] = value
        for compute, inputs, outputs in steps:
            for slot, value in zip(outputs, compute(*[values[n] for n in inputs]), strict=True):
                values[slot] = value
        return [values[slot] for slot in results]

    return run


def _rule(equation: Equation) -> Callable[..., Sequence[Any]]:
    """Return what computes the results of an equation from its operands."""
    if equation.scan is not None:
        return _scan_rule(equation.scan)
    rule = numpy_rule(equation)
    if rule is None:
        return _rule_of_jax(equation)
    if equation.source is None or equation.source.primitive.multiple_results:
        return rule
    return lambda *operands: (rule(*operands),)


def _rule_of_jax(equation: Equation) -> Callable[..., Sequence[Any]]:
    """Return what lets JAX compute an equation."""
    of_jax = jax_rule(equation)
    given = [is_threefry(variable.aval.dtype) for variable in equation.operands]

    def rule(*operands: Any) -> Sequence[Any]:
        arrays = [_key(x) if is_key else x for x, is_key in zip(operands, given, strict=True)]
        return [_to_numpy(array) for array in of_jax(*arrays)]

    return rule


def _scan_rule(scan: Scan) -> Callable[..., Sequence[Any]]:
    """Return what runs the body of a scan once for each slice."""
    body = _run_of(scan.body, _Slots())
    num_consts, num_carry = scan.num_consts, scan.num_carry
    order = range(scan.length)[::-1] if scan.reverse else range(scan.length)
    stacked = scan.body.results[num_carry:]

    def rule(*operands: Any) -> Sequence[Any]:
        consts, rest = operands[:num_consts], operands[num_consts:]
        carry, slices = list(rest[:num_carry]), rest[num_carry:]
        outputs = [np.empty((scan.length, *v.aval.shape), _dtype(v.aval.dtype)) for v in stacked]
        for step in order:
            results = body([*consts, *carry, *(array[step] for array in slices)])
            carry = results[:num_carry]
            for output, result in zip(outputs, results[num_carry:], strict=True):
                output[step] = result
        return [*carry, *outputs]

    return rule


def _dtype(dtype: Any) -> Any:
    return np.uint64 if is_threefry(dtype) else dtype


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    dtype = array.dtype if hasattr(array, "dtype") else jax.dtypes.result_type(array)
    return jax.ShapeDtypeStruct(np.shape(array), dtype)


def _to_numpy(array: Any) -> Any:
    """Return an array of NumPy; keys of Threefry as numbers of 64 bits, other keys as they are."""
    if not isinstance(array, jax.Array) or isinstance(array.dtype, np.dtype):
        return np.asarray(array)
    if not is_threefry(array.dtype):
        return array
    halves = np.asarray(jax.random.key_data(array)).astype(np.uint64)
    return (halves[..., 0] << np.uint64(32)) | halves[..., 1]


def _key(number: np.ndarray) -> jax.Array:
    """Return the key of Threefry that has this number."""
    halves = np.stack([number >> np.uint64(32), number & np.uint64(0xFFFFFFFF)], axis=-1)
    return jax.random.wrap_key_data(jnp.asarray(halves, np.uint32), impl="threefry2x32")


def _with_own_memory(results: Sequence[Any], remains: Set[int]) -> list[Any]:
    """Return results that share no memory, given the identities of arrays that are used again."""
    known = set(remains)
    owned = []
    for result in results:
        array = _to_numpy(result)
        if isinstance(array, np.ndarray) and (array.base is not None or id(array) in known):
            array = np.array(array)
        known.add(id(array))
        owned.append(array)
    return owned


def _forget(arrays: Sequence[Any]) -> None:
    for array in arrays:
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            array.fill(np.nan)
        elif isinstance(array, jax.Array):
            array.delete()
