"""Uniform clusters and jobs, for which closed forms are known."""

from itertools import pairwise

import numpy as np

from jaxpipe.collective import Collective
from jaxpipe.schedule import Bucket, Schedule
from jaxpipe.simulate import MessageCosts, Phase, StepModel
from jaxpipe.topo import Cluster, Device, Host
from jaxpipe.trace import Trace


def cluster(
    num_devices: int,
    *,
    latency_s: float = 0.0,
    bytes_per_s: float = 1.0,
    devices_per_host: int = 1,
    nic_bytes_per_s: float = float("inf"),
) -> Cluster:
    """Return devices that are all joined by links of one kind, also inside hosts."""
    names = [f"h{i // devices_per_host}" for i in range(num_devices)]
    off_diagonal = ~np.eye(num_devices, dtype=bool)
    return Cluster(
        name="uniform",
        devices=tuple(
            Device(name=f"{host}:{i}", host=host, region="here") for i, host in enumerate(names)
        ),
        latency_s=np.where(off_diagonal, latency_s, 0.0),
        bandwidth_bytes_per_s=np.where(off_diagonal, bytes_per_s, np.inf),
        hosts=tuple(
            Host(
                name=name,
                region="here",
                egress_bytes_per_s=nic_bytes_per_s,
                ingress_bytes_per_s=nic_bytes_per_s,
            )
            for name in dict.fromkeys(names)
        ),
    )


def pipeline_job(
    schedule: Schedule,
    *,
    forward_s: tuple[float, ...],
    backward_s: tuple[float, ...],
    hop_s: float = 0.0,
    latency_s: float = 0.0,
    messages: MessageCosts | None = None,
    backward_weight_s: tuple[float, ...] | None = None,
) -> StepModel:
    """Return one pipeline whose links take `hop_s` to send a message, and then the latency."""
    return StepModel(
        num_chunks=len(forward_s) // len(schedule),
        backward_weight_s=backward_weight_s,
        cluster=cluster(len(schedule), latency_s=latency_s),
        placement=(tuple(range(len(schedule))),),
        phases=(Phase(schedule=schedule),),
        forward_s=forward_s,
        backward_s=backward_s,
        activation_bytes=hop_s,
        messages=messages or MessageCosts(),
    )


def collective_job(on: Cluster, collective: Collective, *, schedule: Schedule) -> StepModel:
    """Return a job of one stage in which all ranks, at once, join a collective."""
    num_ranks = len(on)
    return StepModel(
        cluster=on,
        placement=tuple((device,) for device in range(num_ranks)),
        phases=(Phase(schedule=schedule),),
        forward_s=(1.0,) * num_ranks,
        backward_s=(1.0,) * num_ranks,
        collectives={Bucket.STAGE: (collective,)},
    )


def seconds(trace: Trace) -> float:
    """Return when the last span ends."""
    return max(span.end_s for span in trace.spans)


def waits_in_order(trace: Trace, *, rank: int) -> bool:
    """Say whether a rank never computes two things at once."""
    spans = sorted(
        (s.start_s, s.end_s) for s in trace.spans if s.rank == rank and s.lane == "compute"
    )
    return all(a[1] <= b[0] for a, b in pairwise(spans))
