"""Seconds in which the devices of a new plan fetch the state that they lack from those of the old.

::

    old    device 0   layers 0-2      device 1   layers 3-5
    new    device 0   layers 0-3      device 1   layers 4-5      layer 3 moves from 1 to 0

The state of a layer are its parameters and moments; the first has that of the embedding, the last
that of the head. A device sends one layer after the other, and receives so, while others do the
same. A layer comes from the holder that would have sent it first.
"""

from collections import defaultdict
from collections.abc import Collection
from math import inf

from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.plan import Plan
from jaxpipe.topo import Cluster


def moving_s(
    old: Plan,
    new: Plan,
    cluster: Cluster,
    profile: Profile,
    *,
    bytes_per_parameter: int,
    lost: Collection[int] = (),
) -> float:
    """Return the seconds until all devices of the new plan have their layers.

    Nothing can be fetched from the devices `lost`. Infinite if no other device holds a layer: it
    has to come from a checkpoint. Ranks have one device each.
    """
    held = _layers_by_device(old)
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for device, layers in sorted(held.items()):
        for layer in layers if device not in lost else ():
            holders[layer].append(device)
    cut = (1,) * old.num_layers
    sizes = [profile.stage(cut, n).parameters * bytes_per_parameter for n in range(old.num_layers)]
    out_s: defaultdict[int, float] = defaultdict(float)
    into_s: defaultdict[int, float] = defaultdict(float)
    for device, layers in sorted(_layers_by_device(new).items()):
        own = set() if device in lost else held.get(device, set())
        for layer in sorted(layers - own):
            if not holders[layer]:
                return inf
            ends = [
                (out_s[other] + _message_s(cluster, (other, device), sizes[layer]), other)
                for other in holders[layer]
            ]
            end_s, source = min(ends)
            into_s[device] += end_s - out_s[source]
            out_s[source] = end_s
    return max((*out_s.values(), *into_s.values()), default=0.0)


def _layers_by_device(plan: Plan) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for pipeline in plan.pipelines:
        for number, device in enumerate(pipeline.devices):
            stages = pipeline.stages(number)
            found[device] = {layer for stage in stages for layer in pipeline.layers(stage)}
    return found


def _message_s(cluster: Cluster, pair: tuple[int, int], num_bytes: float) -> float:
    return float(cluster.latency_s[pair] + num_bytes / cluster.bandwidth_bytes_per_s[pair])
