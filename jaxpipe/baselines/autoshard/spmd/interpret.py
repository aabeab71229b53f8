"""Evaluate a step operator by operator on local shards, with explicit, combined collectives.

An operator runs as soon as its operands are available in the shardings it needs. An operator that
needs a collective first waits. Only when nothing else can run, one collective runs, for all arrays
that wait for one of its kind, in one flat buffer: the one on which the most operators depend. Thus
all-reduces inside a layer run one by one, and those of all gradients together at the end::

    matmul ─┬─ psum ─ matmul ─┬─ psum ─ ...
            └ gradient ┐      └ gradient ┐
                       └─────────────────┴─ ... ─ one psum over all ─ optimizer
"""

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import Array

from jaxpipe.baselines.autoshard.resharding import LayoutBook, ReshardingStep, steps_to
from jaxpipe.baselines.autoshard.spmd.collect import (
    gather_all,
    names,
    reduce_all,
    reduce_scatter_all,
)
from jaxpipe.baselines.autoshard.spmd.local_operator import run_locally, sliced, unended
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, array_type
from jaxpipe.baselines.autoshard.strategy import (
    Axes,
    CollectiveKind,
    MeshShape,
    OperatorChoice,
    PartialSum,
    Sharding,
    replicated,
)

_JOIN = {"reduce_max": jax.lax.pmax, "reduce_min": jax.lax.pmin}
_COMBINED = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combining:
    """Which collectives of several arrays are one.

    Args:
        by_layout: whether reduce-scatters are combined only if the same other axes split the
            arrays, so that a buffer is either replicated or sharded along those axes, never both.
        bucket_bytes: what one flat buffer of an all-reduce has at most, unless a single array is
            larger: a bucket depends on its own arrays alone, so that it can start before others
            are computed.
        by_compiler: whether the compiler combines reduce-scatters and all-gathers. Then each array
            has its own, without copies into a flat buffer and out of it. By default those of all
            devices but CPUs, for which XLA combines none.
    """

    by_layout: bool = False
    bucket_bytes: float = math.inf
    by_compiler: bool | None = None

    def on(self, platform: str) -> "Combining":
        """Return what `by_compiler` is on a platform of JAX, if it is not set."""
        if self.by_compiler is not None:
            return self
        return replace(self, by_compiler=platform != "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An array that waits for a collective: its kind, axes and dims."""

    number: int
    kind: CollectiveKind
    join: str
    dtype: str
    axes: Axes
    dim: int
    to_dim: int
    before: Sharding
    after: Sharding

    @property
    def beside(self) -> Axes:
        """The other axes that split the array."""
        return tuple(axis for axis in self.after.axes if axis not in self.axes)

    def goes_with(self, other: "Wait", *, by_layout: bool) -> bool:
        """Return whether one flat buffer can carry both."""
        mine = (self.kind, self.join, self.dtype, self.axes)
        scatters = self.kind is CollectiveKind.REDUCE_SCATTER
        return mine == (other.kind, other.join, other.dtype, other.axes) and (
            self.beside == other.beside or not (by_layout and scatters)
        )


def _nothing() -> Mapping[int, "Held"]:
    return MappingProxyType({})


@dataclass(slots=True)
class Held:
    """The shards of one array on this device, by sharding, and its pending reductions."""

    stored: Sharding
    pieces: dict[Sharding, Array]
    ends: tuple[PartialSum, ...] = ()
    join: str = "add"


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """A step that is being evaluated.

    Args:
        program: the operators.
        choices: how each of them is computed.
        mesh: the devices.
        combining: which collectives are one.
    """

    program: OperatorProgram
    choices: Sequence[OperatorChoice]
    mesh: MeshShape
    combining: Combining
    book: LayoutBook
    arrays: MutableMapping[int, Held] = field(default_factory=dict)
    guarded: Mapping[int, Held] = field(default_factory=_nothing)
    weights: Sequence[int] = ()
    barriers: dict[tuple[int, Sharding], Array] = field(default_factory=dict)
    reads: dict[int, list[Sharding]] = field(default_factory=dict)
    steps: dict[int, dict[Sharding, ReshardingStep]] = field(default_factory=dict)

    def run(
        self,
        arguments: Mapping[int, tuple[Sharding, Array]],
        results: Mapping[int, Sharding],
    ) -> list[Array]:
        """Return the pieces of the results, in the order of the program, sharded as asked."""
        self.start(arguments, results)
        self.run_operators(range(len(self.program.operators)))
        return self.results(results)

    def start(
        self, arguments: Mapping[int, tuple[Sharding, Array]], results: Mapping[int, Sharding]
    ) -> None:
        """Take the arguments and the constants, and note how everything will be read."""
        self.hold(arguments)
        for number, value in self.program.constants.items():
            array = self.program.arrays[number]
            unsharded = replicated(len(array.shape))
            # The compiler of jax 0.11 dies of an empty array that `shard_map` closes over.
            stored = value if math.prod(array.shape) else jnp.zeros(array.shape, array.dtype)
            # Computed whole by every device: slices of it are free.
            self.arrays[number] = Held(unsharded, {unsharded: stored})
        self.reads = _reads(self.program, self.choices, results)
        self.weights = _dependents(self.program)

    def hold(self, arguments: Mapping[int, tuple[Sharding, Array]]) -> None:
        """Take the pieces of arguments, stored as these shardings say."""
        for number, (sharding, piece) in arguments.items():
            self.arrays[number] = Held(sharding, {sharding: piece})

    def part(self, *, guarded: bool) -> "Evaluation":
        """Return an evaluation that shares what is here, and keeps what it makes to itself.

        What it resharded of shared arrays is shared as well. With `guarded` it reads them through
        a barrier, so that XLA merges none of its products with those of another part.
        """
        return replace(
            self,
            arrays=ChainMap({}, self.arrays),
            guarded=self.arrays if guarded else MappingProxyType({}),
        )

    def results(self, results: Mapping[int, Sharding]) -> list[Array]:
        """Return the pieces of the results, in the order of the program, sharded as asked."""
        # Results last, and combined: unlike parameters in use, they end up whole anyway.
        while waits := [
            wait for number, needed in results.items() if (wait := self._wait(number, needed))
        ]:
            self._collect(self._together(waits[0], waits))
        return [self._piece(number, results[number]) for number in self.program.results]

    def run_operators(self, places: Iterable[int]) -> None:
        """Run these operators; what they read is here, or made by another of them."""
        # All processes trace this, and hang unless they arrive at the same order of collectives:
        # no sets, only lists and dictionaries in the order of the program.
        left = list(places)
        while left:
            waiting: list[int] = []
            waits: dict[Wait, int] = {}
            for position in left:
                awaited = self._try(position)
                if awaited is None:
                    continue
                waiting.append(position)
                for wait in awaited:
                    waits[wait] = max(waits.get(wait, 0), self.weights[position])
            left = waiting
            if left:
                self._collect(self._next(waits))

    def _try(self, position: int) -> list[Wait] | None:
        """Run an operator; if it cannot run yet, return what its operands wait for."""
        operator, choice = self.program.operators[position], self.choices[position]
        needs = list(zip(operator.inputs, choice.operands, strict=True))
        # An operand is not made yet: its maker waits, and is counted itself.
        if any(number not in self.arrays for number, _ in needs):
            return []
        waits = [wait for number, needed in needs if (wait := self._wait(number, needed))]
        if waits:
            return waits
        operands = [self._read(number, needed) for number, needed in needs]
        results = run_locally(operator, choice, operands, program=self.program, mesh=self.mesh)
        for number, sharding, piece in zip(operator.outputs, unended(choice), results, strict=True):
            self.arrays[number] = Held(sharding, {sharding: piece}, choice.partial, operator.name)
        return None

    def _next(self, waits: Mapping[Wait, int]) -> list[Wait]:
        """Return the next collective and those combined with it."""
        assert waits, "operators wait for nothing"
        # Of equal ones the first, by insertion order: the same on all processes.
        first = max(waits, key=waits.__getitem__)
        if first.kind is CollectiveKind.ALL_GATHER:
            return [first]  # combined gathers would hold all parameters whole at the same time
        return self._together(first, waits)

    def _together(self, first: Wait, waits: Iterable[Wait]) -> list[Wait]:
        """Return the collectives that share a buffer with the first; an all-to-all shares none."""
        if first.kind is CollectiveKind.ALL_TO_ALL:
            return [first]
        together = [
            wait for wait in waits if wait.goes_with(first, by_layout=self.combining.by_layout)
        ]
        return together if first.kind is not CollectiveKind.ALL_REDUCE else self._bucket(together)

    def _bucket(self, waits: Sequence[Wait]) -> list[Wait]:
        """Return those that are made first, up to the size of a bucket; at least one."""
        most = self.combining.bucket_bytes
        if most == math.inf:
            return [*waits]
        bucket: list[Wait] = []
        size = 0
        # Arrays are numbered as they are made: gradients of the last layer first.
        for wait in sorted(waits, key=lambda pending: pending.number):
            size += self._source(wait).nbytes
            if bucket and size > most:
                break
            bucket.append(wait)
        return bucket

    def _wait(self, number: int, needed: Sharding) -> Wait | None:
        """Return the collective that the array needs first, or None if it needs none."""
        array = self.arrays[number]
        dtype = str(self.program.arrays[number].dtype)
        # Partial sums first: a shard of them is no shard of the array.
        if array.ends:
            return _ending(number, array, dtype)
        step = self._first_missing(number, needed)
        return None if step is None else _moving(number, step, dtype)

    def _first_missing(self, number: int, needed: Sharding) -> ReshardingStep | None:
        """Return the first collective on the way to a layout; None if slices lead there."""
        missing = None
        while needed not in self.arrays[number].pieces:
            step = self._steps(number)[needed]
            missing = missing if step.collective is None else step
            needed = step.before
        return missing

    def _steps(self, number: int) -> dict[Sharding, ReshardingStep]:
        """Return the step that makes each layout of an array other than the stored one."""
        if number not in self.steps:
            layouts = self.book.of(array_type(self.program.arrays[number]))
            steps = steps_to(layouts, self.arrays[number].stored, self.reads[number])
            self.steps[number] = {step.after: step for step in steps}
        return self.steps[number]

    def _read(self, number: int, needed: Sharding) -> Array:
        piece = self._piece(number, needed)
        if number not in self.guarded:
            return piece
        # Kept: a barrier for each reader would be as many copies.
        return self.barriers.setdefault((number, needed), jax.lax.optimization_barrier(piece))

    def _piece(self, number: int, needed: Sharding) -> Array:
        pieces = self.arrays[number].pieces
        if needed not in pieces:
            step = self._steps(number)[needed]
            assert step.collective is None, (number, step)
            piece = self._piece(number, step.before)
            for dim, axes in enumerate(needed.dims):
                gained = axes[len(step.before.dims[dim]) :]
                piece = sliced(piece, dim, gained, self.mesh) if gained else piece
            pieces[needed] = piece  # keeps the slice: the next reader needs none
        return pieces[needed]

    def _collect(self, waits: Sequence[Wait]) -> None:
        """Run one collective and store its results."""
        sources = [self._source(wait) for wait in waits]
        for wait, piece in zip(waits, self._collected(waits, sources), strict=True):
            array = self.arrays[wait.number]
            if array.ends:  # partial sums are useless once they are reduced
                # One reduction at a time: `ends` may have a scatter and an all-reduce.
                array.stored, array.ends, array.pieces = wait.after, array.ends[1:], {}
            array.pieces[wait.after] = piece

    def _source(self, wait: Wait) -> Array:
        array = self.arrays[wait.number]
        if array.ends:
            return array.pieces[array.stored]
        return self._piece(wait.number, wait.before)

    def _collected(self, waits: Sequence[Wait], pieces: Sequence[Array]) -> list[Array]:
        kind, axes, dims = waits[0].kind, waits[0].axes, [wait.dim for wait in waits]
        if self.combining.by_compiler and len(waits) > 1 and kind in _COMBINED:
            pairs = zip(waits, pieces, strict=True)
            return [
                collected for one, piece in pairs for collected in self._collected((one,), (piece,))
            ]
        if kind is CollectiveKind.ALL_REDUCE:
            # The operator decides how partial results join: maxima must not be summed.
            join = _JOIN.get(waits[0].join, jax.lax.psum)
            return reduce_all(pieces, axes, join=join)
        if kind is CollectiveKind.REDUCE_SCATTER:
            return reduce_scatter_all(pieces, dims, axes, mesh=self.mesh)
        if kind is CollectiveKind.ALL_GATHER:
            return gather_all(pieces, dims, axes)
        (wait,), (piece,) = waits, pieces
        moved = jax.lax.all_to_all(
            piece, names(axes), split_axis=wait.to_dim, concat_axis=wait.dim, tiled=True
        )
        return [moved]


def _ending(number: int, array: Held, dtype: str) -> Wait:
    end = array.ends[0]
    after, dim = array.stored, -1
    if end.scatter_dim is not None:
        dim = end.scatter_dim
        dims = list(after.dims)
        dims[dim] = (*dims[dim], *end.axes)  # innermost, as the search assumes
        after = Sharding(tuple(dims))
    scatters = end.scatter_dim is not None
    return Wait(
        number=number,
        kind=CollectiveKind.REDUCE_SCATTER if scatters else CollectiveKind.ALL_REDUCE,
        join=array.join if array.join in _JOIN else "add",
        dtype=dtype,
        axes=end.axes,
        dim=dim,
        to_dim=-1,
        before=array.stored,
        after=after,
    )


def _moving(number: int, step: ReshardingStep, dtype: str) -> Wait:
    assert step.collective is not None, step
    have, need = step.before.dims, step.after.dims
    (dim,) = [dim for dim in range(len(have)) if len(need[dim]) < len(have[dim])]
    to_dim = [dim for dim in range(len(have)) if len(need[dim]) > len(have[dim])]
    return Wait(
        number=number,
        kind=step.collective.kind,
        join="add",
        dtype=dtype,
        axes=step.collective.axes,
        dim=dim,
        to_dim=to_dim[0] if to_dim else -1,
        before=step.before,
        after=step.after,
    )


def _reads(
    program: OperatorProgram, choices: Sequence[OperatorChoice], results: Mapping[int, Sharding]
) -> dict[int, list[Sharding]]:
    """Return the layouts in which each array is read, once each."""
    reads: dict[int, dict[Sharding, None]] = {}
    for operator, choice in zip(program.operators, choices, strict=True):
        for number, sharding in zip(operator.inputs, choice.operands, strict=True):
            reads.setdefault(number, {})[sharding] = None
    for number, sharding in results.items():
        reads.setdefault(number, {})[sharding] = None
    return {number: [*shardings] for number, shardings in reads.items()}


def _dependents(program: OperatorProgram) -> list[int]:
    """Return how many operators depend on each one, including itself."""
    # Sets of operators as bits of an integer: n ** 2 / 8 bytes, 12 MB for 10,000 operators.
    readers: dict[int, int] = {}
    counts: list[int] = []
    for position, operator in reversed(list(enumerate(program.operators))):
        reached = 1 << position
        for number in operator.outputs:
            reached |= readers.get(number, 0)
        for number in operator.inputs:
            readers[number] = readers.get(number, 0) | reached
        counts.append(reached.bit_count())
    return counts[::-1]
