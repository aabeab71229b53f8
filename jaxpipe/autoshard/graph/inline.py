"""Inline a jaxpr: one flat list of equations, loops unrolled, with what is rematerialised marked.

Inlined are functions under jit, with custom derivatives and under `jax.checkpoint`; a scan is its
body, so often as it runs. A loop or a condition whose way is known at run time alone stays as it
is, and every device computes it whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jaxpipe.autoshard.graph.subjaxpr import called

_REMAT = frozenset(("checkpoint", "remat", "remat2"))


class Slot:
    """An array of the inlined jaxpr; it is itself, as a variable is."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval = aval


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """An equation of the inlined jaxpr; an operand that is None is a constant."""

    primitive: str
    operands: tuple[Slot | None, ...]
    operand_avals: tuple[Any, ...]
    results: tuple[Slot, ...]
    params: dict[str, Any]
    remat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlined:
    """A flat jaxpr; a result that is None is a constant."""

    arguments: tuple[Slot, ...]
    results: tuple[Slot | None, ...]
    equations: tuple[Equation, ...]


def inline(closed: ClosedJaxpr) -> Inlined:
    """Return the jaxpr with everything in it inlined; its own constants are constants."""
    arguments = tuple(Slot(var.aval) for var in closed.jaxpr.invars)
    equations: list[Equation] = []
    results = _inline(closed.jaxpr, arguments, equations, remat=False)
    return Inlined(arguments=arguments, results=results, equations=tuple(equations))


def _inline(
    jaxpr: Jaxpr, arguments: Sequence[Slot | None], equations: list[Equation], *, remat: bool
) -> tuple[Slot | None, ...]:
    """Append the equations of a jaxpr, given its arguments, and return its results."""
    slots: dict[Any, Slot | None] = dict.fromkeys(jaxpr.constvars)
    slots.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Slot | None:
        return None if isinstance(atom, Literal) else slots[atom]

    for equation in jaxpr.eqns:
        operands = tuple(read(atom) for atom in equation.invars)
        inner = called(equation)
        results: tuple[Slot | None, ...]
        if inner is not None:
            again = remat or equation.primitive.name in _REMAT
            results = _inline(inner.jaxpr, operands, equations, remat=again)
        elif all(operand is None for operand in operands):
            results = (None,) * len(equation.outvars)
        else:
            made = tuple(Slot(var.aval) for var in equation.outvars)
            equations.append(
                Equation(
                    primitive=equation.primitive.name,
                    operands=operands,
                    operand_avals=tuple(atom.aval for atom in equation.invars),
                    results=made,
                    params=equation.params,
                    remat=remat,
                )
            )
            results = made
        slots.update(zip(equation.outvars, results, strict=True))
    return tuple(read(atom) for atom in jaxpr.outvars)


def live(inlined: Inlined) -> Iterator[Equation]:
    """Yield, last first, the equations that some result needs."""
    needed = {slot for slot in inlined.results if slot is not None}
    for equation in reversed(inlined.equations):
        if any(slot in needed for slot in equation.results):
            needed.update(slot for slot in equation.operands if slot is not None)
            yield equation
