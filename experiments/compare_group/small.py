"""Networks and plans of the real runs: devices of a case, with links scaled to a small model."""

import time
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from experiments.compare_group.cases import Setting
from experiments.compare_group.plans import placed, unscheduled_plan
from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.config import load_config
from jaxpipe.plan import Plan, even_partition
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.search import Effort, Fixed, Task, search
from jaxpipe.simulate import Conditions, step_objective
from jaxpipe.topo import Cluster

_FILE = Path(__file__).parent / "real.toml"
_FAST_NIC_GBPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Some devices of a cluster, and the shape of the pipelines on them."""

    name: str
    cluster: str
    devices: tuple[int, ...]
    stages: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """The measured configuration; `real.toml` explains the fields."""

    config: str
    steps: int
    rounds: int
    seed: int
    bytes_scale: float
    time_scale: float
    rank_gflops: float
    search_s: float
    networks: tuple[Network, ...]


def read_small(path: Path = _FILE) -> Small:
    """Read the measured configuration.

    >>> [network.name for network in read_small().networks]
    ['case 3', 'case 5']
    """
    return msgspec.convert(tomllib.loads(path.read_text()), Small)


def scaled_cluster(network: Network, small: Small) -> Cluster:
    """Return the network's devices, with links slowed down for smaller messages and longer time.

    >>> small = read_small()
    >>> link = scaled_cluster(small.networks[0], small).link(0, 4)
    >>> round(link.latency_s, 4), round(link.bandwidth_bytes_per_s)
    (0.0137, 1750000)
    """
    # Pairs of namespaces are shaped, and hosts have no NIC: one faster than all links of a host.
    whole = topo.load(f"{network.cluster}:nic_gbps={_FAST_NIC_GBPS}")
    chosen = topo.subcluster(whole, network.devices, name=network.name.replace(" ", "-"))
    slower = small.bytes_scale * small.time_scale
    return replace(
        chosen,
        devices=tuple(
            replace(device, effective_flops_per_s=small.rank_gflops * 1e9)
            for device in chosen.devices
        ),
        latency_s=small.time_scale * chosen.latency_s,
        bandwidth_bytes_per_s=chosen.bandwidth_bytes_per_s / slower,
        alone_bytes_per_s=chosen.alone_bytes_per_s / slower,
        trunks=tuple(
            replace(trunk, bytes_per_s=trunk.bytes_per_s / slower) for trunk in chosen.trunks
        ),
    )


def small_plans(network: Network, small: Small) -> dict[Setting, Plan]:
    """Return the planner's plan, the same without a scheduler, and Megatron's pipeline."""
    cluster = scaled_cluster(network, small)
    ours = _found(network, small, cluster)
    return {
        Setting.OURS: ours,
        Setting.OURS_UNSCHEDULED: unscheduled_plan(ours, cluster, seed=small.seed),
        Setting.MEGATRON_P8: _megatron(ours),
    }


def _found(network: Network, small: Small, cluster: Cluster) -> Plan:
    config = load_config(small.config)
    flops_per_s = small.rank_gflops * 1e9
    profile = gpt_profile(
        config.model, remat=config.train.remat or Remat.NONE, flops_per_s=flops_per_s
    )
    each = bytes_each(config.model)
    task = Task(
        cluster=cluster,
        profile=profile,
        batch=config.train.batch,
        tied=config.model.tied,
        bytes_each=each,
        fixed=Fixed(
            stages=network.stages,
            replicas=network.replicas,
            microbatch=1,
            chunks=1,
            # Equal stages, so that the losses of all settings can be compared closely.
            cut=even_partition(num_layers=len(profile.layers), num_stages=network.stages),
        ),
    )
    conditions = Conditions(
        cluster=cluster,
        profile=profile,
        slow=np.ones(len(cluster)),
        gradient_bytes=each.gradient,
    )
    effort = Effort(seconds=small.search_s, num_changes=10**6)
    objective = step_objective(conditions)
    return search(task, objective, effort=effort, clock=time.process_time).plan


def _megatron(ours: Plan) -> Plan:
    """Return Megatron's plan: 1F1B, a ring, and stages on blocks of consecutive devices.

    ::

                    stage 0    stage 1    stage 2    stage 3
        replica 0   device 0   device 2   device 4   device 6
        replica 1   device 1   device 3   device 5   device 7
    """
    devices = range(ours.num_ranks)
    order = [
        device
        for first in range(ours.num_replicas)
        for device in devices[first :: ours.num_replicas]
    ]
    return replace(
        placed(ours, order).of_each(warmup=None),
        schedule=ScheduleKind.ONE_F_ONE_B,
        all_reduce=AllReduceKind.RING,
    )
