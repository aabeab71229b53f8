"""What each choice of an operator means in numbers: layouts in and out, seconds and charges.

Layers repeat, so tables are made once for all operators that have one rule and arrays alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxpipe.baselines.autoshard.graph import ArrayType, Graph, Operator, Rule
from jaxpipe.baselines.autoshard.intra_op.enumerate_shardings import (
    Split,
    candidates,
    following_candidate,
    reduction_collectives,
)
from jaxpipe.baselines.autoshard.intra_op.machine import Machine
from jaxpipe.baselines.autoshard.resharding import LayoutBook
from jaxpipe.baselines.autoshard.strategy import (
    Axes,
    Collective,
    CollectiveKind,
    OperatorChoice,
    Sharding,
    latency_s,
    wire_s,
)

Combined = tuple[CollectiveKind, Axes, str]
"""What collectives have in common that start as one: kind, axes, dtype."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChoiceTable:
    """The choices of an operator, or what it does for each layout of what it follows.

    `operands[i]` and `results[j]` are the numbers of layouts, for each choice; operands that are
    constants have none. `splits` are the axes that split each factor, `computed_s` the `seconds`
    without collectives.
    """

    choices: tuple[OperatorChoice, ...]
    splits: tuple[Split, ...]
    operands: tuple[np.ndarray | None, ...]
    results: tuple[np.ndarray, ...]
    seconds: np.ndarray
    computed_s: np.ndarray
    charges: Mapping[Combined, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a table depends on."""

    rule: Rule
    operands: tuple[ArrayType | None, ...]
    results: tuple[ArrayType, ...]
    flops: float
    final: bool
    followed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBook:
    """Tables of all operators of a graph, each made once for all that are alike."""

    graph: Graph
    layouts: LayoutBook
    machine: Machine
    _made: dict[_Kind, ChoiceTable] = field(default_factory=dict)

    def of(self, operator: Operator, *, followed: int | None, final: bool) -> ChoiceTable:
        """Return the table of an operator that follows an operand, or decides (None)."""
        arrays = self.graph.arrays
        kind = _Kind(
            rule=operator.rule,
            operands=tuple(None if array is None else arrays[array] for array in operator.operands),
            results=tuple(arrays[array] for array in operator.results),
            flops=operator.flops,
            final=final,
            followed=followed,
        )
        if kind not in self._made:
            self._made[kind] = _table(kind, self.layouts, self.machine)
        return self._made[kind]


def account(
    collectives: Sequence[Iterable[Collective]], dtype: str, book: LayoutBook, *, final: bool
) -> tuple[np.ndarray, dict[Combined, np.ndarray]]:
    """Return the seconds of the collectives of each choice, and their charges.

    Those of final arrays start together with others of their kind: their latency is a charge.
    """
    seconds = np.zeros(len(collectives))
    charges: dict[Combined, np.ndarray] = {}
    for row, listed in enumerate(collectives):
        for collective in listed:
            # By each part: a combined collective moves the bytes of all.
            seconds[row] += wire_s(
                collective.kind, collective.axes, book.mesh, num_bytes=collective.num_bytes
            )
            # The latency of combined collectives is a charge of the problem, paid once.
            if final:
                masks = charges.setdefault(
                    (collective.kind, collective.axes, dtype),
                    np.zeros(len(collectives), dtype=bool),
                )
                masks[row] = True
            else:
                seconds[row] += charge_s((collective.kind, collective.axes, dtype), book)
    return seconds, charges


def charge_s(combined: Combined, book: LayoutBook) -> float:
    """Return the seconds that collectives of one kind take to start, together."""
    kind, axes, _ = combined
    return latency_s(kind, axes, book.mesh, launch_s=book.launch_s)


def _table(kind: _Kind, book: LayoutBook, machine: Machine) -> ChoiceTable:
    mesh = book.mesh
    if kind.followed is None:
        options = list(candidates(kind.rule, kind.results[0].shape, mesh))
    else:
        followed = kind.operands[kind.followed]
        assert followed is not None, kind
        source = book.of(followed)
        # A row per layout of the followed operand, by number: `Stored.layout` picks rows.
        options = [following_candidate(kind.rule, kind.followed, s, mesh) for s in source.shardings]
    choices = tuple(option.choice for option in options)
    collectives = [_sums(choice, kind.results[0], book) for choice in choices]
    seconds, charges = account(collectives, kind.results[0].dtype, book, final=kind.final)
    # Devices along axes that split nothing compute the same, and save no time.
    devices = np.array([mesh.size(_axes(option.split)) for option in options], dtype=float)
    results = tuple(
        _numbers([choice.results[index] for choice in choices], array, book)
        for index, array in enumerate(kind.results)
    )
    moved = sum(
        book.of(array).num_bytes[numbers]
        for array, numbers in zip(kind.results, results, strict=True)
    )
    # Products are bound by FLOP, light operators by memory: an operator pays for one of them.
    computed_s = kind.flops / machine.flops_per_s / devices
    computed_s = computed_s + (0.0 if kind.flops else moved / machine.memory_bytes_per_s)
    return ChoiceTable(
        choices=choices,
        splits=tuple(option.split for option in options),
        operands=tuple(
            None
            if array is None
            else _numbers([choice.operands[index] for choice in choices], array, book)
            for index, array in enumerate(kind.operands)
        ),
        results=results,
        seconds=seconds + computed_s,
        computed_s=computed_s,
        charges=charges,
    )


def _sums(choice: OperatorChoice, array: ArrayType, book: LayoutBook) -> Iterable[Collective]:
    return reduction_collectives(choice.results[0], choice.partial, array, book.mesh)


def _axes(split: Split) -> Axes:
    return tuple(axis for axes in split.values() for axis in axes)


def _numbers(shardings: Sequence[Sharding], array: ArrayType, book: LayoutBook) -> np.ndarray:
    number = book.of(array).number
    return np.array([number[sharding] for sharding in shardings])
