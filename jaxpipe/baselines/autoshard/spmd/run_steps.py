"""Run some steps of a strategy in this process: as one program, or by a host for each rank.

::

    program    one XLA program over the devices of a mesh                        (spmd)
    hosts      a thread per rank, jitted segments, collectives as messages       (HostStep)

Both return whole arrays, so that any of them can be compared with one device.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxpipe.baselines.autoshard.spmd.host_schedule import schedule_of
from jaxpipe.baselines.autoshard.spmd.host_step import (
    HostStep,
    local_piece,
    measured_segments,
    trace_host_program,
)
from jaxpipe.baselines.autoshard.spmd.sharded_step import (
    NamedStep,
    placed,
    shard_program,
    sharded_step,
)
from jaxpipe.baselines.autoshard.strategy import MeshShape, Sharding, Strategy, jax_mesh
from jaxpipe.comm import Transport, run_ranks

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The state after each step, whole, and the median seconds of a step.

    `hlo` is the text of the compiled program, if there is one.
    """

    states: tuple[Any, ...]
    step_s: float
    hlo: str = ""


def run_program(
    step: NamedStep,
    arguments: Sequence[Any],
    strategy: Strategy,
    *,
    num_steps: int,
    compiler_options: Mapping[str, Any] = MappingProxyType({}),
) -> Ran:
    """Run steps as one program over the devices of this process; the first result is the state.

    Raises:
        PlanError: the strategy does not fit the step, or there are fewer devices.
    """
    lies = placed(arguments, strategy.arguments, jax_mesh(strategy.mesh), names=step.names)
    state, *batch = jax.device_put(tuple(arguments), lies)
    jitted: Any = sharded_step(step, arguments, strategy, donated=())
    compiled = jitted.lower(state, *batch).compile(dict(compiler_options))
    ran = _timed(lambda state: _state_of(step, compiled(state, *batch)), state, num_steps)
    return replace(ran, hlo=compiled.as_text())


def run_hosts(
    step: NamedStep, arguments: Sequence[Any], strategy: Strategy, *, num_steps: int
) -> Ran:
    """Run steps with a thread for each rank, which exchange messages in this process.

    Raises:
        PlanError: the strategy does not fit the step, or its mesh has two axes.
    """
    sharded = shard_program(step, arguments, strategy)
    mesh = strategy.mesh
    leaves = [leaf for tree in arguments for leaf in jax.tree.leaves(tree)]
    structure = jax.tree.structure(step.results(arguments)[0])

    def work(transport: Transport) -> list[tuple[list[Any], float]]:
        rank = transport.rank
        program = trace_host_program(step, arguments, strategy, rank=rank)
        pieces = [
            jax.numpy.asarray(local_piece(leaf, sharding, mesh, rank=rank))
            for leaf, sharding in zip(leaves, sharded.arguments, strict=True)
        ]
        # Compiles; all ranks order alike, whatever each would have measured.
        measured_segments(program, pieces, repeats=1)
        order = schedule_of(
            program, [1.0] * len(program.segments), [1.0] * len(program.collectives)
        )
        host = HostStep(program=program, transport=transport, schedule=order, timeout_s=TIMEOUT_S)
        done: list[tuple[list[Any], float]] = []
        for _ in range(num_steps):
            begin_s = time.perf_counter()
            results = host.run(pieces)[: structure.num_leaves]
            done.append((results, time.perf_counter() - begin_s))
            pieces[: structure.num_leaves] = results
        return done

    by_rank = run_ranks(mesh.num_devices, work)
    states = [
        jax.tree.unflatten(
            structure,
            [
                joined([ranks[number][0][leaf] for ranks in by_rank], sharding, mesh)
                for leaf, sharding in enumerate(sharded.results[: structure.num_leaves])
            ],
        )
        for number in range(num_steps)
    ]
    slowest = [max(ranks[number][1] for ranks in by_rank) for number in range(num_steps)]
    return Ran(states=tuple(states), step_s=median(slowest))


def run_one_device(
    step: NamedStep,
    arguments: Sequence[Any],
    *,
    num_steps: int,
    compiler_options: Mapping[str, Any] = MappingProxyType({}),
) -> Ran:
    """Run steps on one device, unsharded."""
    state, *batch = arguments
    compiled = jax.jit(step.run).lower(*arguments).compile(dict(compiler_options))
    return _timed(lambda state: _state_of(step, compiled(state, *batch)), state, num_steps)


def joined(pieces: Sequence[Any], sharding: Sharding, mesh: MeshShape) -> np.ndarray:
    """Return the whole array of the pieces of all ranks: the inverse of `local_piece`.

    >>> from jaxpipe.baselines.autoshard.strategy import parse_sharding
    >>> mesh = MeshShape(dp=2, op=1)
    >>> joined([np.arange(2), np.arange(2, 4)], parse_sharding("S0"), mesh).tolist()
    [0, 1, 2, 3]
    """
    for dim, axes in enumerate(sharding.dims):
        if mesh.size(axes) > 1:
            return np.concatenate([np.asarray(piece) for piece in pieces], axis=dim)
    return np.asarray(pieces[0])


def _state_of(step: NamedStep, results: Any) -> Any:
    return results if len(step.result_names) == 1 else results[0]


def _timed(run: Callable[[Any], Any], state: Any, num_steps: int) -> Ran:
    states: list[Any] = []
    seconds: list[float] = []
    for _ in range(num_steps):
        begin_s = time.perf_counter()
        state = jax.block_until_ready(run(state))
        seconds.append(time.perf_counter() - begin_s)
        states.append(jax.tree.map(np.asarray, state))
    # The first one may still allocate.
    return Ran(states=tuple(states), step_s=median(seconds[1:] or seconds))
