"""The rank order of DT-FM's published runs, and the pipelines that result from it."""

from collections import Counter, defaultdict
from math import gcd

import numpy as np

from jaxpipe.errors import PlanError
from jaxpipe.topo import Cluster


def launch_order(cluster: Cluster) -> tuple[int, ...]:
    """Return the devices in the order of DT-FM's launcher: host sizes in turn, small ones first.

    Hosts of one size keep their order. In case 2 of DT-FM, 32 hosts of one device and 8 of four
    were ordered as (1 1 1 1 4) x 8.

    >>> from jaxpipe import topo
    >>> launch_order(topo.load("case2-spot"))[:9]
    (32, 33, 34, 35, 0, 1, 2, 3, 36)
    """
    devices: dict[str, list[int]] = defaultdict(list)
    for index, device in enumerate(cluster.devices):
        devices[device.host].append(index)
    kinds: dict[int, list[list[int]]] = defaultdict(list)
    for members in devices.values():
        kinds[len(members)].append(members)
    # The most rounds that share out the hosts of every size evenly.
    num_rounds = gcd(*(len(hosts) for hosts in kinds.values()))
    return tuple(
        device
        for number in range(num_rounds)
        for size in sorted(kinds)
        for members in _share(kinds[size], number, num_rounds)
        for device in members
    )


def _share(hosts: list[list[int]], number: int, num_rounds: int) -> list[list[int]]:
    hosts_per_round = len(hosts) // num_rounds
    return hosts[number * hosts_per_round : (number + 1) * hosts_per_round]


def shuffled(order: tuple[int, ...], *, seed: int) -> tuple[int, ...]:
    """Return the device of each rank as DT-FM's runs without a scheduler drew it.

    The first device is rank 0; the ranks of the others are shuffled by NumPy's old generator.

    >>> shuffled((10, 20, 30, 40), seed=2022)
    (10, 30, 40, 20)
    """
    ranks = np.arange(1, len(order))
    np.random.RandomState(seed).shuffle(ranks)
    device_of = dict(zip((0, *ranks.tolist()), order, strict=True))
    return tuple(device_of[rank] for rank in range(len(order)))


def pipelines(
    cluster: Cluster, order: tuple[int, ...], *, num_stages: int, batch: int
) -> tuple[tuple[int, ...], ...]:
    """Divide the devices, in order, into the most pipelines that divide the batch.

    If some are left out, every region keeps its first ones.

    Raises:
        PlanError: there are fewer devices than stages, or no sample.
    """
    rows = [order[i : i + num_stages] for i in range(0, len(order) - num_stages + 1, num_stages)]
    if not rows or batch < 1:
        raise PlanError(
            f"cluster {cluster.name!r} has {len(cluster)} devices for {num_stages} stages, and "
            f"`batch` is {batch}: a pipeline needs a device for each stage, and a sample; take a "
            "larger cluster or batch"
        )
    num_used = max(n for n in range(1, len(rows) + 1) if batch % n == 0)
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    # The n-th row of each region before the (n + 1)-th of any.
    for index, row in enumerate(rows):
        region = cluster.devices[row[0]].region
        turns.append((seen[region], index))
        seen[region] += 1
    # Sorted again: the rows that are left keep the launch order.
    return tuple(rows[index] for index in sorted(i for _, i in sorted(turns)[:num_used]))
