"""One rank of an SPMD system: one step, sharded over all ranks by a strategy.

The model, the samples of each step, the optimizer and the seed are those of the pipeline. The step
takes the whole batch at once, or as two halves that overlap.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import jax
import msgspec

from jaxpipe.baselines.autoshard.hlo import collectives
from jaxpipe.baselines.autoshard.spmd import (
    Combining,
    NamedStep,
    abstract_arrays,
    placed,
    sharded_step,
)
from jaxpipe.baselines.autoshard.spmd.distributed import initial_pieces, placed_pieces
from jaxpipe.baselines.autoshard.strategy import Strategy, jax_mesh, parse_strategy, strategy_text
from jaxpipe.baselines.compare.busy_speeds import measure_busy_speeds
from jaxpipe.baselines.compare.host_rank import HostRun
from jaxpipe.baselines.compare.measured import MeasuredStep, RankPart, peak_bytes
from jaxpipe.baselines.compare.routed_job import routed
from jaxpipe.baselines.compare.slow_link_bytes import regions_of, sent_in_rings
from jaxpipe.baselines.compare.strategies import BUCKET_BYTES, NAMES, RESULT_NAMES, Chosen, choose
from jaxpipe.baselines.compare.system import SEARCHES, Executor
from jaxpipe.baselines.compare.whole_step import optimizer_of, whole_batch, whole_step
from jaxpipe.baselines.systems import System
from jaxpipe.comm import (
    BARRIER_TAG,
    BROADCAST_TAG,
    CountingTransport,
    Transport,
    barrier,
    broadcast_bytes,
)
from jaxpipe.runtime.compile_count import counted_compiles
from jaxpipe.runtime.job import Job
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a run: their transport, the device of each, and their cluster."""

    transport: Transport
    devices: tuple[Any, ...]
    cluster: Cluster


def run_sharded(
    system: System,
    job: Job,
    ranks: Ranks,
    *,
    observe: Callable[[MeasuredStep], None],
    executor: Executor = Executor.SPMD,
) -> tuple[Chosen, tuple[MeasuredStep, ...], RankPart]:
    """Train as one of the ranks, which have joined; the losses are the same on all ranks.

    Raises:
        DeadlineError: another rank did not answer in time.
        PlanError: no strategy was found, or the executor does not run it.
    """
    job = routed(system, job)
    halves = 2 if system is System.HIDUP else 1
    step, arguments = _named_step(job, halves=halves)
    timeout_s, transport = job.run.startup_timeout_s, ranks.transport
    precision = partial(jax.default_matmul_precision, job.run.matmul_precision.jax_name)
    speeds = None
    if system in SEARCHES:
        with precision():
            speeds = measure_busy_speeds(transport, ranks.devices, timeout_s=timeout_s)
    choice = _chosen_by_rank_0(
        transport,
        lambda: choose(system, job, step, arguments, speeds=speeds),
        timeout_s=timeout_s,
    )
    strategy = choice.strategy
    if executor is Executor.HOST:
        host = HostRun(
            job=job,
            step=step,
            arguments=arguments,
            strategy=strategy,
            transport=CountingTransport(transport),
            bucket_bytes=BUCKET_BYTES.get(system, inf),
        )
        with precision():
            return choice, *host.train(ranks.cluster, observe=observe)
    combining = Combining(bucket_bytes=BUCKET_BYTES.get(system, inf))
    with precision():
        compiled = _compile(step, arguments, strategy, ranks.devices, combining=combining)
    return choice, *_train_compiled(job, compiled, strategy, ranks, observe=observe)


def _named_step(job: Job, *, halves: int) -> tuple[NamedStep, Sequence[Any]]:
    """Return the step of a job, and the shapes of its arguments."""
    run, arguments = whole_step(job, microbatches=halves)
    step = NamedStep(
        run=run,
        names=NAMES,
        result_names=RESULT_NAMES,
        microbatches=halves,
        duplex=halves == 2,
    )
    return step, arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    """An executable of a step, the shardings of its arguments, and the cost of compiling it."""

    run: Any
    shardings: Sequence[Any]
    compile_s: float
    num_requests: int
    num_hits: int


def _compile(
    step: NamedStep,
    arguments: Sequence[Any],
    strategy: Strategy,
    devices: tuple[Any, ...],
    *,
    combining: Combining,
) -> _Compiled:
    begin_s = time.perf_counter()
    jitted: Any = sharded_step(step, arguments, strategy, devices=devices, combining=combining)
    mesh = jax_mesh(strategy.mesh, devices)
    shardings = placed(arguments, strategy.arguments, mesh, names=NAMES)
    # From abstract arrays: the state need not exist yet.
    with counted_compiles() as compiles:
        run = jitted.lower(*abstract_arrays(arguments, shardings)).compile()
    return _Compiled(
        run=run,
        shardings=shardings,
        compile_s=time.perf_counter() - begin_s,
        num_requests=compiles.num_requests,
        num_hits=compiles.num_hits,
    )


def _train_compiled(
    job: Job,
    compiled: _Compiled,
    strategy: Strategy,
    ranks: Ranks,
    *,
    observe: Callable[[MeasuredStep], None],
) -> tuple[tuple[MeasuredStep, ...], RankPart]:
    sent, slow = sent_in_rings(
        collectives(compiled.run.as_text()),
        strategy.mesh,
        regions_of(job.plan, ranks.cluster),
        rank=ranks.transport.rank,
    )
    steps = _train(job, compiled.run, compiled.shardings, ranks.transport, observe)
    part = RankPart(
        compile_s=compiled.compile_s,
        peak_bytes=peak_bytes(),
        sent_bytes=sent,
        slow_bytes=slow,
        num_compiled=compiled.num_requests,
        num_cached=compiled.num_hits,
    )
    return steps, part


def _chosen_by_rank_0(
    transport: Transport, choose_here: Callable[[], Chosen], *, timeout_s: float
) -> Chosen:
    """Let rank 0 choose for all ranks: timed searches may end differently on each."""
    mine = None
    # On rank 0 alone: the others wait in the broadcast meanwhile, up to `timeout_s`.
    if transport.rank == 0:
        here = choose_here()
        fields = (strategy_text(here.strategy), here.description, here.search_s, here.searched_for)
        mine = msgspec.json.encode(fields)
    received = broadcast_bytes(transport, mine, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    text, description, search_s, searched_for = msgspec.json.decode(
        received, type=tuple[str, str, float | None, str | None]
    )
    return Chosen(
        strategy=parse_strategy(text),
        description=description,
        search_s=search_s,
        searched_for=searched_for,
    )


def _train(
    job: Job,
    compiled: Any,
    shardings: Any,
    transport: Transport,
    observe: Callable[[MeasuredStep], None],
) -> tuple[MeasuredStep, ...]:
    # The pipeline's key and samples: its losses are compared with these.
    key = jax.random.key(job.run.seed)
    state = initial_pieces(job.model, optimizer_of(job), key, shardings[0])
    # gloo gives all ranks 30 s to connect in the first step, and one of them may still compile.
    barrier(transport, tag=BARRIER_TAG, timeout_s=job.run.startup_timeout_s)
    steps: list[MeasuredStep] = []
    for number in range(job.train.steps):
        begin_s = time.perf_counter()
        batch = placed_pieces(whole_batch(job, step=number), shardings[1:])
        # `state` is donated: the old one must not be used again.
        state, loss = compiled(state, *batch)
        # The loss alone may be ready before the update: the whole step counts.
        jax.block_until_ready(state)
        done = MeasuredStep(step=number + 1, loss=float(loss), step_s=time.perf_counter() - begin_s)
        steps.append(done)
        observe(done)
    return tuple(steps)
