"""One rank of an SPMD system whose collectives the host runs, so that they overlap on CPUs too.

The step is cut into segments at its collectives, which a thread runs as messages of the transport
while the next segments compute (`jaxpipe.baselines.autoshard.spmd.host_step`). Rank 0 measures
segments and collectives, and its times decide the order of both on all ranks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import jax
import msgspec

from jaxpipe.baselines.autoshard.spmd import (
    HostSchedule,
    HostStep,
    NamedStep,
    initial_state,
    local_piece,
    measured_collectives,
    measured_segments,
    schedule_of,
    shard_program,
    trace_host_program,
)
from jaxpipe.baselines.autoshard.spmd.host_program import HostProgram
from jaxpipe.baselines.autoshard.strategy import Sharding, Strategy
from jaxpipe.baselines.compare.measured import MeasuredStep, RankPart, peak_bytes
from jaxpipe.baselines.compare.slow_link_bytes import regions_of, sent_in_messages
from jaxpipe.baselines.compare.whole_step import optimizer_of, whole_batch
from jaxpipe.comm import BARRIER_TAG, BROADCAST_TAG, CountingTransport, barrier, broadcast_bytes
from jaxpipe.runtime.compile_count import counted_compiles
from jaxpipe.runtime.job import Job
from jaxpipe.topo import Cluster

_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """What a rank runs: the step of a job, its strategy, and the transport to the other ranks."""

    job: Job
    step: NamedStep
    arguments: Sequence[Any]
    strategy: Strategy
    transport: CountingTransport
    bucket_bytes: float = inf

    def train(
        self, cluster: Cluster, *, observe: Callable[[MeasuredStep], None]
    ) -> tuple[tuple[MeasuredStep, ...], RankPart]:
        """Train as one of the ranks; the losses are the same on all.

        Each rank draws the whole state before it keeps its pieces.

        Raises:
            DeadlineError: another rank did not answer in time.
            PlanError: the strategy splits over two axes of devices.
        """
        begin_s = time.perf_counter()
        with counted_compiles() as count:
            host, shardings, pieces = self._started()
        compile_s = time.perf_counter() - begin_s
        before = self.transport.num_bytes_to()
        num_state = len(jax.tree.leaves(self.arguments[0]))
        steps: list[MeasuredStep] = []
        for number in range(self.job.train.steps):
            begin_s = time.perf_counter()
            pieces[num_state:] = self._pieces(self._batch(number), shardings[num_state:])
            *pieces[:num_state], loss = host.run(pieces)
            seconds = time.perf_counter() - begin_s
            steps.append(MeasuredStep(step=number + 1, loss=float(loss), step_s=seconds))
            observe(steps[-1])
        sent, slow = sent_in_messages(
            self.transport.num_bytes_to() - before,
            regions_of(self.job.plan, cluster),
            rank=self.transport.rank,
        )
        part = RankPart(
            compile_s=compile_s,
            peak_bytes=peak_bytes(),
            sent_bytes=sent / len(steps),
            slow_bytes=slow / len(steps),
            num_compiled=count.num_requests,
            num_cached=count.num_hits,
        )
        return tuple(steps), part

    def _started(self) -> tuple[HostStep, Sequence[Sharding], list[Any]]:
        """Return the compiled step, the shardings of its arguments, and those of the first step."""
        job, rank = self.job, self.transport.rank
        program = trace_host_program(
            self.step, self.arguments, self.strategy, rank=rank, bucket_bytes=self.bucket_bytes
        )
        shardings = shard_program(self.step, self.arguments, self.strategy).arguments
        key = jax.random.key(job.run.seed)
        state = initial_state(job.model, optimizer_of(job), key, dtype="float32")
        pieces = self._pieces([*jax.tree.leaves(state), *self._batch(0)], shardings)
        host = HostStep(
            program=program,
            transport=self.transport,
            schedule=self._schedule(program, pieces),
            timeout_s=job.run.timeout_s,
        )
        return host, shardings, pieces

    def _schedule(self, program: HostProgram, pieces: Sequence[Any]) -> HostSchedule:
        """Return the order that suits the times of rank 0, while all ranks measure."""
        transport, timeout_s = self.transport, self.job.run.startup_timeout_s
        barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
        segments = measured_segments(program, pieces, repeats=_REPEATS)
        # Ranks compile at different speeds: a collective must not wait for that.
        barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
        moved = measured_collectives(program, transport, repeats=_REPEATS, timeout_s=timeout_s)
        mine = msgspec.json.encode((segments, moved)) if transport.rank == 0 else None
        text = broadcast_bytes(transport, mine, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
        return schedule_of(
            program, *msgspec.json.decode(text, type=tuple[list[float], list[float]])
        )

    def _batch(self, number: int) -> list[Any]:
        return [*whole_batch(self.job, step=number)]

    def _pieces(self, arrays: Sequence[Any], shardings: Sequence[Sharding]) -> list[Any]:
        mesh, rank = self.strategy.mesh, self.transport.rank
        return [
            jax.numpy.asarray(local_piece(array, sharding, mesh, rank=rank))
            for array, sharding in zip(arrays, shardings, strict=True)
        ]
