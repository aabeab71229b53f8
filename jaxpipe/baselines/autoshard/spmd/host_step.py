"""Run a sharded step segment by segment, its collectives on a thread over any transport.

XLA runs the collectives of a CPU between its products, never during them. Here the host overlaps
them itself::

    main thread        segment 0 │ segment 1 │ segment 2 ...
    progress thread              │ collective 0 │ collective 1 ...

All ranks run the same collectives in the same order, which the schedule fixes beforehand.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxpipe.baselines.autoshard.spmd.host_program import HostCollective, HostProgram, host_program
from jaxpipe.baselines.autoshard.spmd.host_schedule import HostSchedule, schedule_of
from jaxpipe.baselines.autoshard.spmd.interpret import Combining
from jaxpipe.baselines.autoshard.spmd.sharded_step import NamedStep, local_step, shard_program
from jaxpipe.baselines.autoshard.strategy import MeshShape, Sharding, Strategy
from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import ALL_REDUCE_TAG, Transport
from jaxpipe.comm.collective.all_reduce import all_reduce
from jaxpipe.comm.collective.exchange import all_gather, all_to_all, reduce_scatter
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.errors import PlanError
from jaxpipe.jaxpr import Variable, flatten, live, read


def trace_host_program(
    step: NamedStep,
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    rank: int,
    bucket_bytes: float = inf,
) -> HostProgram:
    """Return what a rank runs of a step, one device to a rank.

    One all-reduce of several arrays has at most `bucket_bytes`.

    Raises:
        PlanError: the strategy does not fit, or its mesh has two axes.
    """
    mesh = strategy.mesh
    if len(mesh.real_axes) > 1:
        raise PlanError(
            f"`dp` ({mesh.dp}) x `op` ({mesh.op}): the host runs only collectives of all ranks; "
            "put all devices on one axis"
        )
    sharded = shard_program(step, arguments, strategy)
    leaves = [leaf for tree in arguments for leaf in jax.tree.leaves(tree)]
    shapes = [
        jax.ShapeDtypeStruct(sharding.local_shape(leaf.shape, mesh), leaf.dtype)
        for leaf, sharding in zip(leaves, sharded.arguments, strict=True)
    ]
    local = local_step(step, sharded, mesh, combining=Combining(bucket_bytes=bucket_bytes))
    traced = jax.make_jaxpr(local, axis_env=[("dp", mesh.dp), ("op", mesh.op)])(*shapes)
    return host_program(live(flatten(traced, unroll=True, barriers=True)), rank=rank)


def local_piece(array: Any, sharding: Sharding, mesh: MeshShape, *, rank: int) -> np.ndarray:
    """Return a rank's piece of an array on a mesh of one axis.

    >>> from jaxpipe.baselines.autoshard.strategy import parse_sharding
    >>> local_piece(np.arange(4), parse_sharding("S0"), MeshShape(dp=2, op=1), rank=1)
    array([2, 3])
    """
    piece = np.asarray(array)
    for dim, axes in enumerate(sharding.dims):
        if mesh.size(axes) > 1:
            piece = np.split(piece, mesh.size(axes), axis=dim)[rank]
    return piece


@dataclass(slots=True, kw_only=True)
class HostStep:
    """A step of one rank.

    Args:
        program: the step.
        transport: to the other ranks, as many as the mesh has devices.
        schedule: the order; the same on all ranks.
        timeout_s: of each message.
        paced_s: the least that each segment takes; the thread sleeps for the rest. It stands for
            slower devices, and hides what else the machine computes.
    """

    program: HostProgram
    transport: Transport
    schedule: HostSchedule
    timeout_s: float = 60.0
    paced_s: Sequence[float] = ()

    def run(self, pieces: Sequence[Any]) -> list[Any]:
        """Return this rank's pieces of the results, given those of the arguments."""
        program = self.program
        values: dict[Variable, Any] = dict(zip(program.flat.arguments, pieces, strict=True))
        thread = SerialExecutor(name=f"the collectives of rank {self.transport.rank}")
        under_way: dict[int, Future[Array]] = {}
        try:
            self._begin(None, values, under_way, thread)
            for index in self.schedule.segments:
                segment = program.segments[index]
                for number in segment.collectives:
                    result = under_way[number].result(timeout=self.timeout_s)
                    values[program.collectives[number].result] = result
                begin_s = time.perf_counter()
                outputs = segment.run(*(values[array] for array in segment.inputs))
                # A collective reads them: its thread must not wait for what is not computed.
                values.update(zip(segment.outputs, jax.block_until_ready(outputs), strict=True))
                if self.paced_s:
                    time.sleep(max(0.0, begin_s + self.paced_s[index] - time.perf_counter()))
                self._begin(index, values, under_way, thread)
            for number, future in under_way.items():
                result = future.result(timeout=self.timeout_s)
                values[program.collectives[number].result] = result
        finally:
            thread.close(timeout_s=self.timeout_s)
        return [read(values, atom) for atom in program.flat.results]

    def _begin(
        self,
        segment: int | None,
        values: dict[Variable, Any],
        under_way: dict[int, Future[Array]],
        thread: SerialExecutor,
    ) -> None:
        for number, collective in enumerate(self.program.collectives):
            if collective.segment == segment:
                operand = np.asarray(read(values, collective.operand))
                under_way[number] = thread.begin(
                    lambda launched=collective, operand=operand: run_collective(
                        launched, operand, self.transport, timeout_s=self.timeout_s
                    )
                )


def run_collective(
    collective: HostCollective, operand: np.ndarray, transport: Transport, *, timeout_s: float
) -> Array:
    """Run one collective among all ranks of a transport, and return this rank's result."""
    order, params = tuple(range(transport.num_ranks)), collective.params
    num_ranks, options = len(order), {"tag": ALL_REDUCE_TAG, "timeout_s": timeout_s}
    if collective.primitive == "psum":
        total = all_reduce(
            transport, np.array(operand), order, algorithm=AllReduceKind.RING, **options
        )
        return jax.numpy.asarray(total)
    if collective.primitive == "all_gather":
        flat = all_gather(
            transport, operand.ravel(), order, size=num_ranks * operand.size, **options
        )
        rows = flat.reshape(num_ranks, *operand.shape)
        joined = _side_by_side(rows, params["all_gather_dimension"], tiled=params["tiled"])
    elif collective.primitive == "reduce_scatter":
        dim, tiled = params["scatter_dimension"], params["tiled"]
        flat = reduce_scatter(transport, _blocks(operand, dim, num_ranks), order, **options)
        joined = flat.reshape(_scattered_shape(operand.shape, dim, num_ranks, tiled=tiled))
    else:
        blocks = _blocks(operand, params["split_axis"], num_ranks)
        flat = all_to_all(transport, blocks, order, **options)
        rows = flat.reshape(blocks.shape)
        joined = _side_by_side(rows, params["concat_axis"], tiled=True)
    return jax.numpy.asarray(joined)


def _blocks(array: np.ndarray, dim: int, num_blocks: int) -> np.ndarray:
    """Return the blocks along a dim, one after the other."""
    return np.stack(np.split(array, num_blocks, axis=dim))


def _side_by_side(rows: np.ndarray, dim: int, *, tiled: bool) -> np.ndarray:
    return np.concatenate([*rows], axis=dim) if tiled else np.moveaxis(rows, 0, dim)


def _scattered_shape(
    shape: tuple[int, ...], dim: int, num_ranks: int, *, tiled: bool
) -> tuple[int, ...]:
    size = (shape[dim] // num_ranks,) if tiled else ()
    return (*shape[:dim], *size, *shape[dim + 1 :])


def measured_segments(program: HostProgram, pieces: Sequence[Any], *, repeats: int) -> list[float]:
    """Return the seconds of each segment, the median of several passes; collectives give zeros.

    A pass runs all segments one after the other: a segment that is repeated at once finds its
    inputs in the cache and its outputs allocated, and is faster than in a step.
    """
    values: dict[Variable, Any] = dict(zip(program.flat.arguments, pieces, strict=True))
    even = schedule_of(program, [1.0] * len(program.segments), [0.0] * len(program.collectives))
    for collective in program.collectives:
        values[collective.result] = jax.numpy.zeros(
            collective.result.aval.shape, collective.result.aval.dtype
        )
    seconds = np.zeros((repeats + 1, len(program.segments)))
    for number in range(repeats + 1):
        for index in even.segments:
            segment = program.segments[index]
            inputs = [jax.numpy.asarray(values[array]) for array in segment.inputs]
            begin_s = time.perf_counter()
            outputs = jax.block_until_ready(segment.run(*inputs))
            seconds[number, index] = time.perf_counter() - begin_s
            values.update(zip(segment.outputs, outputs, strict=True))
    return np.median(seconds[1:], axis=0).tolist()  # the first pass compiles


def measured_collectives(
    program: HostProgram, transport: Transport, *, repeats: int, timeout_s: float
) -> list[float]:
    """Return the seconds of each collective on this rank, the median of several; all ranks call it.

    Messages are zeros of the right size, and nothing computes meanwhile.
    """
    seconds = np.zeros((repeats + 1, len(program.collectives)))
    for number in range(repeats + 1):
        for index, collective in enumerate(program.collectives):
            operand = np.zeros(collective.operand.aval.shape, collective.operand.aval.dtype)
            begin_s = time.perf_counter()
            run_collective(collective, operand, transport, timeout_s=timeout_s)
            seconds[number, index] = time.perf_counter() - begin_s
    return np.median(seconds[1:], axis=0).tolist()  # the first pass connects
