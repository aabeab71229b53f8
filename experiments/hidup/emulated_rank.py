"""One rank of `emulated`: runs programs of systems, with paced computes and emulated links.

Computes sleep. Collectives send real messages, smaller by one factor, through the runtime's own
algorithms, on a thread beside the computes; a switch on rank 0 says when each message arrives.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np

from experiments.hidup.emulated import COLUMNS, measured_bars
from experiments.hidup.emulated_links import cluster_of, devices_of_host, profile_of_links
from experiments.hidup.step_program import (
    Await,
    Communicate,
    Compute,
    Program,
    program_of,
    simulated_s,
)
from experiments.hidup.workloads import fitted, workload
from jaxpipe.baselines.autoshard.duplex.duplex_systems import predicted_step_s
from jaxpipe.collective import AllReduceKind, Transfer
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.comm import (
    ALL_REDUCE_TAG,
    BARRIER_TAG,
    BROADCAST_TAG,
    GATHER_TAG,
    Transport,
    barrier,
    broadcast_bytes,
    gather_bytes,
)
from jaxpipe.comm.collective.all_reduce import all_reduce
from jaxpipe.comm.collective.exchange import all_gather, all_to_all, reduce_scatter
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.comm.serial_executor import SerialExecutor
from jaxpipe.paced.paced_transport import PacedTransport, connect
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.switch import Switch
from jaxpipe.paced.virtual_clock import TimeBase, VirtualClock
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.schedule import Bucket
from jaxpipe.simulate.engine.step_model import StepModel
from jaxpipe.topo import Cluster

_TIMEOUT_S = 600.0
_MESSAGE_BYTES = 4096
_AHEAD_S = 0.5
"""Real seconds until emulated time starts: all ranks must know its origin by then."""


def main() -> None:
    """Run all bars with as many devices as there are ranks; rank 0 prints a line for each."""
    die_with_parent()
    stretch, transport = float(sys.argv[1]), MpiTransport()
    for bar in measured_bars(sys.argv[2:], num_devices=transport.num_ranks):
        work = workload(bar, fitted())
        # Rank 0 searches for all.
        mine = (
            msgspec.json.encode(to_cells(program_of(bar.system, work)))
            if _is_first(transport)
            else None
        )
        text = broadcast_bytes(transport, mine, root=0, tag=BROADCAST_TAG, timeout_s=_TIMEOUT_S)
        program = from_cells(json.loads(text))
        on_host = devices_of_host(bar, transport.num_ranks)
        found = emulated_s(
            program, cluster_of(work.profile, on_host=on_host), transport, stretch=stretch
        )
        if found is None:
            continue
        links_s = simulated_s(program, profile_of_links(work.profile, on_host=on_host))
        simulated = predicted_step_s(bar.system, work)
        cells = (
            *(bar.figure, bar.condition, bar.model, bar.system.value, transport.num_ranks),
            *(f"{each:.4f}" for each in (found[0], simulated, found[0] / simulated)),
            *(f"{each:.4f}" for each in (links_s, found[0] / links_s)),
            *(f"{1e3 * found[1]:.3f}", f"{stretch:g}"),
        )
        sys.stdout.write(json.dumps(dict(zip(COLUMNS, cells, strict=True))) + "\n")
        sys.stdout.flush()
    transport.close()


def emulated_s(
    program: Program, cluster: Cluster, transport: Transport, *, stretch: float
) -> tuple[float, float] | None:
    """Return the emulated seconds of the last rank, and the mean lateness of messages, on rank 0.

    Every emulated second takes `stretch` seconds. All ranks of the transport call this.
    """
    num_ranks = transport.num_ranks
    scale, job = Scale(message=_message_scale(program, num_ranks), time=stretch), _job(cluster)
    with tempfile.TemporaryDirectory() as folder:
        switch, mine = None, None
        if _is_first(transport):
            switch = Switch(job, Path(folder) / "switch", gathers=frozenset())
            mine = str(Path(folder) / "switch").encode()
        path = broadcast_bytes(
            transport, mine, root=0, tag=BROADCAST_TAG, timeout_s=_TIMEOUT_S
        ).decode()
        clock = VirtualClock()
        connection = connect(Path(path), rank=transport.rank)
        paced = PacedTransport(transport, connection, num_ranks=num_ranks, clock=clock, scale=scale)
        try:
            barrier(transport, tag=BARRIER_TAG, timeout_s=_TIMEOUT_S)
            base = None
            if switch is not None:
                origin = TimeBase(origin_s=time.perf_counter() + _AHEAD_S, stretch=stretch)
                switch.start(origin)
                base = msgspec.json.encode(origin)
            text = broadcast_bytes(transport, base, root=0, tag=BROADCAST_TAG, timeout_s=_TIMEOUT_S)
            clock.start(msgspec.json.decode(text, type=TimeBase))
            end_s = _run(program, paced, clock, scale)
            ends = gather_bytes(
                transport, str(end_s).encode(), root=0, tag=GATHER_TAG, timeout_s=_TIMEOUT_S
            )
        finally:
            paced.close()
            if switch is not None:
                switch.close()
    if ends is None or switch is None:
        return None
    return max(float(each) for each in ends), switch.lateness.mean_s


def _run(program: Program, transport: PacedTransport, clock: VirtualClock, scale: Scale) -> float:
    """Run the program on this rank, and return when it ends."""
    thread = SerialExecutor(name=f"the collectives of rank {transport.rank}")
    ends: list[Future[float]] = []
    clock.sleep(0.0)
    try:
        for each in program:
            match each:
                case Compute():
                    clock.sleep(each.seconds)
                case Communicate():
                    ends.append(
                        thread.begin(
                            partial(_communicate, each, transport, clock, scale, clock.now())
                        )
                    )
                case Await():
                    for end in ends[: each.count]:
                        clock.reach(end.result(timeout=_TIMEOUT_S))
    finally:
        thread.close(timeout_s=_TIMEOUT_S)
    return clock.now()


def _communicate(
    each: Communicate,
    transport: PacedTransport,
    clock: VirtualClock,
    scale: Scale,
    begin_s: float,
) -> float:
    """Run a collective of bytes that stand for a tensor, and return when it ends."""
    clock.reach(begin_s)
    n = transport.num_ranks
    order, whole = tuple(range(n)), scale.num_bytes(each.num_bytes)
    if each.kind is CollectiveKind.ALL_REDUCE:
        array = np.zeros(max(n, whole), np.uint8)
        all_reduce(
            transport,
            array,
            order,
            tag=ALL_REDUCE_TAG,
            timeout_s=_TIMEOUT_S,
            algorithm=AllReduceKind.RING,
        )
    elif each.kind is CollectiveKind.ALL_GATHER:
        size = n * max(1, round(whole / n))
        own = np.zeros(size // n, np.uint8)
        all_gather(transport, own, order, size=size, tag=ALL_REDUCE_TAG, timeout_s=_TIMEOUT_S)
    elif each.kind is CollectiveKind.REDUCE_SCATTER:
        array = np.zeros(n * max(1, round(whole / n)), np.uint8)
        reduce_scatter(transport, array, order, tag=ALL_REDUCE_TAG, timeout_s=_TIMEOUT_S)
    else:
        block = max(1, round(whole / n**2))
        all_to_all(
            transport,
            np.zeros(n * block, np.uint8),
            order,
            tag=ALL_REDUCE_TAG,
            timeout_s=_TIMEOUT_S,
        )
    return clock.now()


def _message_scale(program: Program, num_ranks: int) -> float:
    """Return the scale at which the largest message has `_MESSAGE_BYTES`."""
    largest = max(
        each.num_bytes / num_ranks ** (2 if each.kind is CollectiveKind.ALL_TO_ALL else 1)
        for each in program
        if isinstance(each, Communicate)
    )
    return _MESSAGE_BYTES / largest


def _job(cluster: Cluster) -> StepModel:
    """Return what the switch needs to know: the cluster, and that all ranks send to all."""
    n = len(cluster)
    every = tuple(Transfer(source, to, 0.0) for source, to in permutations(range(n), 2))
    return StepModel(
        cluster=cluster,
        placement=tuple((each,) for each in range(n)),
        phases=(),
        forward_s=(1.0,) * n,
        backward_s=(1.0,) * n,
        collectives={Bucket.STAGE: (every,)},
    )


def _is_first(transport: Transport) -> bool:
    return transport.rank == 0


def to_cells(program: Program) -> list[tuple[str, ...]]:
    """Return the instructions as rows of text, to broadcast them."""
    return [
        (type(each).__name__, *(str(getattr(each, name)) for name in each.__slots__))
        for each in program
    ]


def from_cells(rows: Sequence[Sequence[str]]) -> Program:
    """Return the program of rows of `to_cells`."""
    made: list[Compute | Communicate | Await] = []
    for name, *cells in rows:
        if name == "Compute":
            made.append(Compute(float(cells[0])))
        elif name == "Communicate":
            made.append(Communicate(CollectiveKind(cells[0]), float(cells[1])))
        else:
            made.append(Await(int(cells[0])))
    return tuple(made)


if __name__ == "__main__":
    main()
