"""Divide the equations of a traced function into two halves: computed first, and later.

The first half has the equations that some outputs need, the second the rest of those for others::

    cotangent ─► d mlp ─► d attention ─► d input        first
                   │            │
                 d kernel     d kernel                  second; the arrows down are the crossing

A scan is divided as well, by its body; arrays that cross in the body are stacked over iterations.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.extend.core.primitives import (
    broadcast_in_dim_p,
    reduce_sum_p,
    reshape_p,
    scan_p,
    squeeze_p,
    transpose_p,
)

from jaxpipe.runtime.stage.split_backward.jaxpr import variables

_LAYOUT = frozenset({broadcast_in_dim_p, reshape_p, squeeze_p, transpose_p})
"""Computed again rather than carried: otherwise one array may cross in several shapes."""

_SUMS = frozenset({reduce_sum_p})
"""Computed first, although they could wait: the gradients of biases and norms are sums, and cross
instead of their operands. So the carried arrays are hardly larger than the residuals were."""

Positions = frozenset[int]
"""Some inputs or outputs of a function or an equation, by their position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A function in two halves.

    `first` and `second` map the number of each equation to the outputs that the half computes. An
    equation may be in both; a scan may be with different outputs, as `scans` describes. The
    variables `crossing` cross from the first to the second half, and so do those within scans.
    """

    first: Mapping[int, Positions]
    second: Mapping[int, Positions]
    scans: Mapping[int, "ScanHalves"]
    crossing: tuple[Var, ...]
    first_inputs: Positions
    second_inputs: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanHalves:
    """A scan in two halves: the carries that each updates, and its body.

    The second half reads the carries `crossing_carries` of the first, with their values before each
    iteration.
    """

    first_carries: tuple[int, ...]
    second_carries: tuple[int, ...]
    crossing_carries: tuple[int, ...]
    body: Halves


def halve(jaxpr: Jaxpr, *, first: Positions, second: Positions) -> Halves:
    """Return the halves that compute the outputs at the positions `first` and `second`."""
    chosen, first_inputs = _slice(jaxpr, first)
    made = {
        jaxpr.eqns[number].outvars[position]
        for number, positions in chosen.items()
        for position in positions
    }
    needed = set(variables(jaxpr.outvars[position] for position in second))
    rest: dict[int, Positions] = {}
    scans: dict[int, ScanHalves] = {}
    # From the last equation to the first: `needed` is complete for an equation once all equations
    # that read its outputs have been visited.
    for number, equation in _backwards(jaxpr):
        wanted, have = _among(equation.outvars, needed), chosen.get(number, frozenset())
        missing = wanted - have
        if _is_scan(equation) and (missing or 0 < len(have) < len(equation.outvars)):
            scans[number] = _halve_scan(equation, first=have, second=missing)
            inputs = _second_inputs(equation, scans[number])
        elif missing or (wanted and _is_cheap(equation)):
            missing = wanted
            inputs = frozenset(range(len(equation.invars)))
        else:
            continue
        if missing:
            rest[number] = missing
            needed -= {equation.outvars[position] for position in missing}
            needed |= variables(equation.invars[position] for position in inputs)
    return Halves(
        first=chosen,
        second=rest,
        scans=scans,
        crossing=tuple(v for v in _made_in_order(jaxpr) if v in made and v in needed),
        first_inputs=first_inputs,
        second_inputs=_among(jaxpr.invars, needed),
    )


def _slice(jaxpr: Jaxpr, wanted: Positions) -> tuple[dict[int, Positions], Positions]:
    """Return the outputs of each equation, and the inputs, that `wanted` and all sums depend on."""
    needed = set(variables(jaxpr.outvars[position] for position in wanted))
    for equation in jaxpr.eqns:
        needed.update(equation.outvars if equation.primitive in _SUMS else ())
    chosen: dict[int, Positions] = {}
    for number, equation in _backwards(jaxpr):
        positions = _among(equation.outvars, needed)
        if not positions:
            continue
        if _is_scan(equation):
            positions, inputs = _slice_scan(equation, positions)
        else:
            positions = frozenset(range(len(equation.outvars)))
            inputs = frozenset(range(len(equation.invars)))
        chosen[number] = positions
        needed |= variables(equation.invars[position] for position in inputs)
    return chosen, _among(jaxpr.invars, needed)


def _slice_scan(
    equation: JaxprEqn, wanted: Positions, *, known: Positions = frozenset()
) -> tuple[Positions, Positions]:
    """Return the outputs of a scan that the wanted ones need, over all iterations, and the inputs.

    Carries at the positions `known` of the outputs are computed already.
    """
    first_carry, num_carry = equation.params["num_consts"], equation.params["num_carry"]
    # To a fixed point: a carry that one iteration reads is an output of the iteration before.
    while True:
        _, inputs = _slice(equation.params["jaxpr"].jaxpr, wanted)
        carried = {p - first_carry for p in inputs if 0 <= p - first_carry < num_carry}
        if carried <= wanted | known:
            return wanted, inputs | {first_carry + p for p in wanted if p < num_carry}
        wanted |= carried - known


def _halve_scan(equation: JaxprEqn, *, first: Positions, second: Positions) -> ScanHalves:
    first_carry, num_carry = equation.params["num_consts"], equation.params["num_carry"]
    known = frozenset(p for p in first if p < num_carry)
    if second:
        second, _ = _slice_scan(equation, second, known=known)
    body = halve(equation.params["jaxpr"].jaxpr, first=first, second=second)
    return ScanHalves(
        first_carries=tuple(sorted(known)),
        second_carries=tuple(sorted(p for p in second if p < num_carry)),
        crossing_carries=tuple(sorted(p for p in known if first_carry + p in body.second_inputs)),
        body=body,
    )


def _second_inputs(equation: JaxprEqn, halves: ScanHalves) -> Positions:
    """Return the inputs of a scan that its second half reads from outside of the scan."""
    first_carry = equation.params["num_consts"]
    elsewhere = {first_carry + carry for carry in halves.first_carries}
    own = {first_carry + carry for carry in halves.second_carries}
    return (halves.body.second_inputs - elsewhere) | own


def _is_scan(equation: JaxprEqn) -> bool:
    return equation.primitive is scan_p


def _is_cheap(equation: JaxprEqn) -> bool:
    """Return whether computing an equation twice is cheaper than carrying its output."""
    if equation.primitive not in _LAYOUT:
        return False
    (output,) = equation.outvars
    return sum(_size(atom) for atom in equation.invars) <= _size(output)


def _size(atom: Any) -> int:
    return atom.aval.size


def _among(atoms: Iterable[Any], wanted: Set[Var]) -> Positions:
    return frozenset(
        n for n, atom in enumerate(atoms) if not isinstance(atom, Literal) and atom in wanted
    )


def _backwards(jaxpr: Jaxpr) -> Iterator[tuple[int, JaxprEqn]]:
    return reversed(list(enumerate(jaxpr.eqns)))


def _made_in_order(jaxpr: Jaxpr) -> Iterator[Var]:
    return (variable for equation in jaxpr.eqns for variable in equation.outvars)
