"""Run the halves of a backward, scans included.

Arrays that cross within a scan are stacked over its iterations, and read back one by one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxpipe.jaxpr import Equation, FlatJaxpr, Scan, Values, compute, read, run_scan
from jaxpipe.runtime.stage.split_backward.halves import Halves, Positions, ScanHalves

Arrays = Mapping[int, Any]
"""Arrays by their position among the inputs or outputs of an equation."""

_NOTHING: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())


def crossing_keys(halves: Halves) -> tuple[Any, ...]:
    """Return the keys of the values that cross: variables, and numbers of scans."""
    return (*halves.crossing, *sorted(halves.scans.keys() & halves.first.keys()))


def run_first(flat: FlatJaxpr, halves: Halves, values: Values) -> None:
    """Add to `values` what the first half computes, which includes what crosses."""
    for number, wanted in sorted(halves.first.items()):
        equation = flat.equations[number]
        if equation.scan is not None and number in halves.scans:
            scanned = _HalvedScan(
                scan=equation.scan, equation=equation, halves=halves.scans[number], values=values
            )
            outputs, values[number] = scanned.first(wanted)
        else:
            outputs = _whole(equation, values)
        _write(values, equation, outputs)


def run_second(flat: FlatJaxpr, halves: Halves, values: Values) -> None:
    """Add to `values`, which include what crossed, what the second half computes."""
    for number, wanted in sorted(halves.second.items()):
        equation = flat.equations[number]
        if equation.scan is not None and number in halves.scans:
            scanned = _HalvedScan(
                scan=equation.scan, equation=equation, halves=halves.scans[number], values=values
            )
            outputs = scanned.second(wanted, values.get(number, _NOTHING))
        else:
            outputs = _whole(equation, values)
        _write(values, equation, outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HalvedScan:
    """A scan in two halves, and the values of what it reads."""

    scan: Scan
    equation: Equation
    halves: ScanHalves
    values: Values

    @property
    def first_x(self) -> int:
        """The position of the first operand that is sliced."""
        return self.scan.num_consts + self.scan.num_carry

    def first(self, wanted: Positions) -> tuple[Arrays, Any]:
        """Return the wanted outputs, and what crosses, stacked."""
        keys = crossing_keys(self.halves.body)
        constants = self._read(p for p in self.halves.body.first_inputs if p < self.scan.num_consts)

        def step(carry: Arrays, xs: Arrays) -> tuple[Arrays, Any]:
            inside = self._inside(constants, carry, xs)
            # Saved before the body runs: the second half reads the carry that entered it.
            before = tuple(carry[number] for number in self.halves.crossing_carries)
            run_first(self.scan.body, self.halves.body, inside)
            crossing = (tuple(inside[key] for key in keys), before)
            return self._outputs(inside, carry), (self._ys(inside, wanted), crossing)

        carry = self._carry(self.halves.first_carries)
        xs = self._read(p for p in self.halves.body.first_inputs if p >= self.first_x)
        carry, (ys, crossing) = run_scan(self.scan, step, carry, xs)
        return {**carry, **ys}, crossing

    def second(self, wanted: Positions, crossing: Any) -> Arrays:
        """Return the wanted outputs, given what crosses."""
        body, keys = self.scan.body, crossing_keys(self.halves.body)
        constants = self._read(
            p for p in self.halves.body.second_inputs if p < self.scan.num_consts
        )

        def step(carry: Arrays, xs: Any) -> tuple[Arrays, Arrays]:
            step_inputs, (crossed, before) = xs
            inside = self._inside(constants, carry, step_inputs)
            inside.update(zip(keys, crossed, strict=True))
            # As they were before this iteration: the first half has run through all of them.
            for number, array in zip(self.halves.crossing_carries, before, strict=True):
                inside[body.arguments[self.scan.num_consts + number]] = array
            run_second(body, self.halves.body, inside)
            return self._outputs(inside, carry), self._ys(inside, wanted)

        carry = self._carry(self.halves.second_carries)
        xs = self._read(p for p in self.halves.body.second_inputs if p >= self.first_x)
        carry, ys = run_scan(self.scan, step, carry, (xs, crossing))
        return {**carry, **ys}

    def _read(self, positions: Iterable[int]) -> Arrays:
        return {p: read(self.values, self.equation.operands[p]) for p in positions}

    def _carry(self, carries: Iterable[int]) -> Arrays:
        operands, first = self.equation.operands, self.scan.num_consts
        return {n: read(self.values, operands[first + n]) for n in carries}

    def _inside(self, constants: Arrays, carry: Arrays, xs: Arrays) -> Values:
        """Return the values with which one iteration of the body begins."""
        first = self.scan.num_consts
        inputs = {**constants, **{first + n: value for n, value in carry.items()}, **xs}
        return {self.scan.body.arguments[p]: array for p, array in inputs.items()}

    def _outputs(self, inside: Values, positions: Iterable[int]) -> Arrays:
        return {p: read(inside, self.scan.body.results[p]) for p in positions}

    def _ys(self, inside: Values, wanted: Positions) -> Arrays:
        return self._outputs(inside, (p for p in wanted if p >= self.scan.num_carry))


def _whole(equation: Equation, values: Values) -> Arrays:
    return dict(
        enumerate(compute(equation, [read(values, operand) for operand in equation.operands]))
    )


def _write(values: Values, equation: Equation, outputs: Arrays) -> None:
    values.update({equation.results[position]: array for position, array in outputs.items()})
