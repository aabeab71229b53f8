"""Evaluate the halves of a traced function, scans included.

Arrays that cross within a scan are stacked over its iterations, and read back one by one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn

from jaxpipe.runtime.stage.split_backward.jaxpr import Values, compute, read, scan
from jaxpipe.runtime.stage.split_backward.partition import Halves, Positions, ScanHalves

Arrays = Mapping[int, Any]
"""Arrays by their position among the inputs or outputs of an equation."""

_NOTHING: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())


def crossing_keys(halves: Halves) -> tuple[Any, ...]:
    """Return the keys of the values that cross: variables, and numbers of scans."""
    return (*halves.crossing, *sorted(halves.scans.keys() & halves.first.keys()))


def run_first(jaxpr: Jaxpr, halves: Halves, values: Values) -> None:
    """Add the results of the first half to `values`, those that cross included."""
    for number, wanted in sorted(halves.first.items()):
        equation = jaxpr.eqns[number]
        if number in halves.scans:
            scanned = _Scan(equation=equation, halves=halves.scans[number], values=values)
            outputs, values[number] = scanned.first(wanted)
        else:
            outputs = _whole(equation, values)
        _write(values, equation, outputs)


def run_second(jaxpr: Jaxpr, halves: Halves, values: Values) -> None:
    """Add the results of the second half to `values`, which must contain those that crossed."""
    for number, wanted in sorted(halves.second.items()):
        equation = jaxpr.eqns[number]
        if number in halves.scans:
            scanned = _Scan(equation=equation, halves=halves.scans[number], values=values)
            outputs = scanned.second(wanted, values.get(number, _NOTHING))
        else:
            outputs = _whole(equation, values)
        _write(values, equation, outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """A scan in two halves, and the values that it reads."""

    equation: JaxprEqn
    halves: ScanHalves
    values: Values

    @property
    def body(self) -> Jaxpr:
        return self.equation.params["jaxpr"].jaxpr

    @property
    def first_carry(self) -> int:
        return self.equation.params["num_consts"]

    @property
    def first_x(self) -> int:
        return self.first_carry + self.equation.params["num_carry"]

    def first(self, wanted: Positions) -> tuple[Arrays, Any]:
        """Return the wanted outputs, and the arrays that cross, stacked."""
        body, keys = self.body, crossing_keys(self.halves.body)
        constants = self._read(p for p in self.halves.body.first_inputs if p < self.first_carry)

        def step(carry: Arrays, xs: Arrays) -> tuple[Arrays, Any]:
            inside = self._inside(constants, carry, xs)
            before = tuple(carry[number] for number in self.halves.crossing_carries)
            run_first(body, self.halves.body, inside)
            crossing = (tuple(inside[key] for key in keys), before)
            return self._outputs(inside, carry), (self._ys(inside, wanted), crossing)

        carry = self._carry(self.halves.first_carries)
        xs = self._read(p for p in self.halves.body.first_inputs if p >= self.first_x)
        carry, (ys, crossing) = scan(self.equation, step, carry, xs)
        return {**carry, **ys}, crossing

    def second(self, wanted: Positions, crossing: Any) -> Arrays:
        """Return the wanted outputs, given the arrays that crossed."""
        body, keys = self.body, crossing_keys(self.halves.body)
        constants = self._read(p for p in self.halves.body.second_inputs if p < self.first_carry)

        def step(carry: Arrays, xs: Any) -> tuple[Arrays, Arrays]:
            own, (crossed, before) = xs
            inside = self._inside(constants, carry, own)
            inside.update(zip(keys, crossed, strict=True))
            for number, array in zip(self.halves.crossing_carries, before, strict=True):
                inside[body.invars[self.first_carry + number]] = array
            run_second(body, self.halves.body, inside)
            return self._outputs(inside, carry), self._ys(inside, wanted)

        carry = self._carry(self.halves.second_carries)
        xs = self._read(p for p in self.halves.body.second_inputs if p >= self.first_x)
        carry, ys = scan(self.equation, step, carry, (xs, crossing))
        return {**carry, **ys}

    def _read(self, positions: Iterable[int]) -> Arrays:
        return {p: read(self.values, self.equation.invars[p]) for p in positions}

    def _carry(self, carries: Iterable[int]) -> Arrays:
        return {n: read(self.values, self.equation.invars[self.first_carry + n]) for n in carries}

    def _inside(self, constants: Arrays, carry: Arrays, xs: Arrays) -> Values:
        """Return the values at the start of one iteration of the body."""
        closed = self.equation.params["jaxpr"]
        values: Values = dict(zip(self.body.constvars, closed.consts, strict=True))
        inputs = {**constants, **{self.first_carry + n: each for n, each in carry.items()}, **xs}
        values.update({self.body.invars[p]: array for p, array in inputs.items()})
        return values

    def _outputs(self, inside: Values, positions: Iterable[int]) -> Arrays:
        return {p: read(inside, self.body.outvars[p]) for p in positions}

    def _ys(self, inside: Values, wanted: Positions) -> Arrays:
        return self._outputs(inside, (p for p in wanted if p >= self.first_x - self.first_carry))


def _whole(equation: JaxprEqn, values: Values) -> Arrays:
    return dict(enumerate(compute(equation, [read(values, atom) for atom in equation.invars])))


def _write(values: Values, equation: JaxprEqn, outputs: Arrays) -> None:
    values.update({equation.outvars[position]: array for position, array in outputs.items()})
