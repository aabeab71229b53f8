"""Partition the equations of a backward: which run first, and which can wait.

The first half has the equations that some outputs need, the second the rest of those for others::

    cotangent ─► d mlp ─► d attention ─► d input        first
                   │            │
                 d kernel     d kernel                  second; the arrows down are the crossing

A scan is partitioned as well: its body is, and what crosses in the body is stacked over the
iterations.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from jaxpipe.jaxpr import Equation, FlatJaxpr, Scan, Variable

_LAYOUT: Final = frozenset(("broadcast_in_dim", "reshape", "squeeze", "transpose"))
"""Computed twice rather than carried: otherwise one array may cross in several shapes."""

_SUMS: Final = frozenset(("reduce_sum",))
"""Computed first, though they can wait: the gradients of biases and norms are sums, and cross in
place of all that they add. So little more is carried than the residuals were."""

Positions = frozenset[int]
"""Inputs or outputs of a function or an equation, by position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A function in two halves.

    `first` and `second` map the number of an equation to the outputs that the half computes. An
    equation may be in both: a scan with different outputs, described in `scans`. The variables
    `crossing`, and what crosses in the scans, lead from the first half to the second.
    """

    first: Mapping[int, Positions]
    second: Mapping[int, Positions]
    scans: Mapping[int, "ScanHalves"]
    crossing: tuple[Variable, ...]
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


def halve(flat: FlatJaxpr, *, first: Positions, second: Positions) -> Halves:
    """Return the halves that compute the outputs at the positions `first` and `second`."""
    selected, first_inputs = _slice(flat, first)
    made = {
        flat.equations[number].results[position]
        for number, positions in selected.items()
        for position in positions
    }
    needed = _variables(flat.results[position] for position in second)
    rest: dict[int, Positions] = {}
    scans: dict[int, ScanHalves] = {}
    # From the last equation to the first: `needed` is complete for an equation once all equations
    # that read its outputs have been visited.
    for number, equation in _backwards(flat):
        wanted, have = _among(equation.results, needed), selected.get(number, frozenset())
        missing = wanted - have
        scan = equation.scan
        if scan is not None and (missing or 0 < len(have) < len(equation.results)):
            scans[number] = _halve_scan(scan, first=have, second=missing)
            inputs = _second_inputs(scan, scans[number])
        elif missing or (wanted and _is_cheap(equation)):
            missing = wanted
            inputs = frozenset(range(len(equation.operands)))
        else:
            continue
        if missing:
            rest[number] = missing
            needed -= {equation.results[position] for position in missing}
            needed |= _variables(equation.operands[position] for position in inputs)
    return Halves(
        first=selected,
        second=rest,
        scans=scans,
        # In the order of the equations, as sets have none: both halves count on it.
        crossing=tuple(v for v in _made_in_order(flat) if v in made and v in needed),
        first_inputs=first_inputs,
        second_inputs=_among(flat.arguments, needed),
    )


def _slice(flat: FlatJaxpr, wanted: Positions) -> tuple[dict[int, Positions], Positions]:
    """Return the outputs of each equation, and the inputs, that some outputs and all sums need."""
    needed = _variables(flat.results[position] for position in wanted)
    for equation in flat.equations:
        needed.update(equation.results if equation.primitive in _SUMS else ())
    selected: dict[int, Positions] = {}
    for number, equation in _backwards(flat):
        positions = _among(equation.results, needed)
        if not positions:
            continue
        if equation.scan is not None:
            positions, inputs = _slice_scan(equation.scan, positions)
        else:
            positions = frozenset(range(len(equation.results)))
            inputs = frozenset(range(len(equation.operands)))
        selected[number] = positions
        needed |= _variables(equation.operands[position] for position in inputs)
    return selected, _among(flat.arguments, needed)


def _slice_scan(
    scan: Scan, wanted: Positions, *, known: Positions = frozenset()
) -> tuple[Positions, Positions]:
    """Return the outputs of a scan that the wanted ones need, over all iterations, and the inputs.

    Carries at `known` positions of the outputs are available already.
    """
    while True:  # an iteration may need carries that only the one before it computes
        _, inputs = _slice(scan.body, wanted)
        carried = {p - scan.num_consts for p in inputs if 0 <= p - scan.num_consts < scan.num_carry}
        if carried <= wanted | known:
            return wanted, inputs | {scan.num_consts + p for p in wanted if p < scan.num_carry}
        wanted |= carried - known


def _halve_scan(scan: Scan, *, first: Positions, second: Positions) -> ScanHalves:
    known = frozenset(p for p in first if p < scan.num_carry)
    if second:
        second, _ = _slice_scan(scan, second, known=known)
    body = halve(scan.body, first=first, second=second)
    return ScanHalves(
        first_carries=tuple(sorted(known)),
        second_carries=tuple(sorted(p for p in second if p < scan.num_carry)),
        crossing_carries=tuple(
            sorted(p for p in known if scan.num_consts + p in body.second_inputs)
        ),
        body=body,
    )


def _second_inputs(scan: Scan, halves: ScanHalves) -> Positions:
    """Return the inputs of a scan that its second half reads from outside."""
    elsewhere = {scan.num_consts + carry for carry in halves.first_carries}
    carries = {scan.num_consts + carry for carry in halves.second_carries}
    return (halves.body.second_inputs - elsewhere) | carries


def _is_cheap(equation: Equation) -> bool:
    """Whether an equation is better computed twice than its output carried."""
    if equation.primitive not in _LAYOUT:
        return False
    (output,) = equation.results
    return sum(operand.aval.size for operand in equation.operands) <= output.aval.size


def _variables(among: Iterable[Variable]) -> set[Variable]:
    return {variable for variable in among if not variable.is_constant}


def _among(variables: Iterable[Variable], wanted: Set[Variable]) -> Positions:
    return frozenset(n for n, variable in enumerate(variables) if variable in wanted)


def _backwards(flat: FlatJaxpr) -> Iterator[tuple[int, Equation]]:
    return reversed(list(enumerate(flat.equations)))


def _made_in_order(flat: FlatJaxpr) -> Iterator[Variable]:
    return (variable for equation in flat.equations for variable in equation.results)
