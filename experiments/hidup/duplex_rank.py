"""One rank of `duplex`: a step with experts over both ranks, whole and as a duplex, in turns."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import (
    HostProgram,
    HostStep,
    NamedStep,
    initial_state,
    local_piece,
    measured_segments,
    schedule_of,
    shard_program,
    trace_host_program,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import (
    Axis,
    AxisLink,
    MeshShape,
    Pins,
    Strategy,
    parse_sharding,
    split_along,
)
from jaxpipe.comm import BARRIER_TAG, BROADCAST_TAG, barrier, broadcast_bytes
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.comm.shaped import ShapedTransport
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.topo import Cluster, Device

_TIMEOUT_S = 300.0
_NUM_REPEATS, _BATCH, _SEQUENCE = 7, 128, 64
_LATENCY_S = 2e-4
_MODEL = GptConfig(
    num_layers=2,
    dim=256,
    num_heads=4,
    sequence=_SEQUENCE,
    vocabulary=256,
    tied=False,
    experts=4,
    capacity_factor=2.0,
)


def main() -> None:
    """Run this rank; rank 0 prints a line of JSON."""
    die_with_parent()
    pace = float(sys.argv[1])
    inner = MpiTransport()
    step, arguments = _step()
    strategy = _strategy(step, arguments)
    runs = {
        "whole": _Run.of(replace(step, microbatches=1, duplex=False), arguments, strategy, inner),
        "duplex": _Run.of(step, arguments, strategy, inner),
    }
    # Of the whole step: its messages take as long as its products.
    whole = runs["whole"]
    bandwidth = sum(map(_sent_bytes, whole.program.collectives)) / sum(whole.segment_s)
    if pace:
        bandwidth /= pace
        runs = {name: run.paced(pace) for name, run in runs.items()}
    transport = ShapedTransport(inner, _two_ranks(bandwidth), devices=(0, 1))
    found = {
        name: _measured(run, transport, bandwidth, is_paced=pace > 0) for name, run in runs.items()
    }
    for _ in range(_NUM_REPEATS):  # in turns: what else this machine does hits both alike
        for name, run in runs.items():
            found[name]["measured_s"].append(_timed(run, found[name]["host"]))
    if transport.rank == 0:
        for each in found.values():
            del each["host"]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    transport.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A way to run the step: what this rank does, and the seconds of each segment."""

    program: HostProgram
    pieces: Sequence[Any]
    segment_s: Sequence[float]

    def paced(self, pace: float) -> "_Run":
        """Return the same with segments that take `pace` times as long."""
        return replace(self, segment_s=[pace * each for each in self.segment_s])

    @classmethod
    def of(
        cls, step: NamedStep, arguments: Sequence[Any], strategy: Strategy, transport: MpiTransport
    ) -> "_Run":
        """Trace and compile the step, and measure its segments on rank 0."""
        rank = transport.rank
        program = trace_host_program(step, arguments, strategy, rank=rank)
        shardings = shard_program(step, arguments, strategy).arguments
        leaves = [leaf for tree in arguments for leaf in jax.tree.leaves(tree)]
        pieces = [
            jax.numpy.asarray(local_piece(leaf, sharding, strategy.mesh, rank=rank))
            for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        # Both ranks measure, as both compute in a step; one list decides, for one order on both.
        mine = json.dumps(measured_segments(program, pieces, repeats=3)).encode()
        seconds = broadcast_bytes(
            transport, mine if rank == 0 else None, root=0, tag=BROADCAST_TAG, timeout_s=_TIMEOUT_S
        )
        return cls(program=program, pieces=pieces, segment_s=json.loads(seconds))


def _measured(
    run: _Run, transport: ShapedTransport, bandwidth: float, *, is_paced: bool
) -> dict[str, Any]:
    """Return what is simulated, and what runs, after one step that does not count."""
    collective_s = [
        _num_rounds(each) * _LATENCY_S + _sent_bytes(each) / bandwidth
        for each in run.program.collectives
    ]
    schedule = schedule_of(run.program, run.segment_s, collective_s)
    host = HostStep(
        program=run.program,
        transport=transport,
        schedule=schedule,
        timeout_s=_TIMEOUT_S,
        paced_s=run.segment_s if is_paced else (),
    )
    results = host.run(run.pieces)
    return {
        "host": host,
        "num_collectives": len(run.program.collectives),
        "computed_s": sum(run.segment_s),
        "moved_s": sum(collective_s),
        "simulated_s": schedule.seconds,
        "measured_s": [],
        "loss": float(np.asarray(results[-1])),
    }


def _timed(run: _Run, host: HostStep) -> float:
    barrier(host.transport, tag=BARRIER_TAG, timeout_s=_TIMEOUT_S)
    begin_s = time.perf_counter()
    host.run(run.pieces)
    barrier(host.transport, tag=BARRIER_TAG, timeout_s=_TIMEOUT_S)
    return time.perf_counter() - begin_s


def _num_rounds(collective: Any) -> int:
    return 2 if collective.primitive == "psum" else 1


def _sent_bytes(collective: Any) -> float:
    """Return what one of two ranks sends: a half, and of an all-reduce two halves."""
    return _num_rounds(collective) * collective.num_bytes / 2


def _step() -> tuple[NamedStep, tuple[Any, Any, Any]]:
    model, optimizer = Gpt(_MODEL), optax.sgd(0.1)
    drawn = np.random.default_rng(0).integers(
        _MODEL.vocabulary, size=(2, _BATCH, _SEQUENCE), dtype=np.int32
    )
    state = initial_state(model, optimizer, jax.random.key(0), dtype="float32")
    step = NamedStep(
        run=train_step(model, optimizer, remat=False, microbatches=2),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
        microbatches=2,
        duplex=True,
    )
    return step, (state, drawn[0], drawn[1])


def _strategy(step: NamedStep, arguments: Sequence[Any]) -> Strategy:
    """Return expert parallelism: the batch and the experts over both ranks."""
    micro = step.of_one_microbatch(arguments)
    graph = trace_step(step.run, *micro, names=step.names, result_names=step.result_names)
    texts = {"tokens": "S0R", "targets": "S0R", "*.moe.up": "S0RR", "*.moe.down": "S0RR"}
    # By experts: kernels as small as these would be gathered, rather than tokens sent.
    products = [
        (each.index, graph.arrays[each.results[0]].shape)
        for each in graph.operators
        if each.primitive == "dot_general"
    ]
    pins = Pins(
        arguments={path: parse_sharding(text) for path, text in texts.items()},
        operators={
            index: split_along(len(shape), 0, (Axis.DP,))
            for index, shape in products
            if shape[0] == _MODEL.experts
        },
    )
    mesh = MeshShape(dp=2, op=1, dp_link=AxisLink(bandwidth_bytes_per_s=1e8))
    return find_strategy(graph, mesh, Machine(flops_per_s=1e10), pins=pins).priced.strategy


def _two_ranks(bandwidth: float) -> Cluster:
    devices = tuple(
        Device(name=f"rank{each}", host=f"host{each}", region="here") for each in range(2)
    )
    bandwidths = np.full((2, 2), bandwidth)
    np.fill_diagonal(bandwidths, np.inf)
    return Cluster(
        name="two-ranks",
        devices=devices,
        latency_s=_LATENCY_S * (1 - np.eye(2)),
        bandwidth_bytes_per_s=bandwidths,
    )


if __name__ == "__main__":
    main()
