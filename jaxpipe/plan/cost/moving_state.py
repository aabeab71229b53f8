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

import numpy as np

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
    if not is_complete(old, lost=lost):
        return inf
    layers_of = _layers_by_device(old)
    holders = [
        np.array(
            [
                d
                for d, layers_there in sorted(layers_of.items())
                if layer in layers_there and d not in lost
            ]
        )
        for layer in range(old.num_layers)
    ]
    cut = (1,) * old.num_layers
    sizes = [profile.stage(cut, n).parameters * bytes_per_parameter for n in range(old.num_layers)]
    out_s = np.zeros(len(cluster))
    into_s: defaultdict[int, float] = defaultdict(float)
    for device, layers in sorted(_layers_by_device(new).items()):
        present = set() if device in lost else layers_of.get(device, set())
        for layer in sorted(layers - present):
            others = holders[layer]
            links = others, device
            message_s = (
                cluster.latency_s[links] + sizes[layer] / cluster.bandwidth_bytes_per_s[links]
            )
            ends_s = out_s[others] + message_s
            # Of equal ones the first.
            first = int(ends_s.argmin())
            into_s[device] += float(message_s[first])
            out_s[others[first]] = ends_s[first]
    return max(float(out_s.max()), *into_s.values(), 0.0)


def is_complete(plan: Plan, *, lost: Collection[int] = ()) -> bool:
    """Return whether every layer is on a device that is not lost."""
    layer_sets = (
        layers_there
        for device, layers_there in _layers_by_device(plan).items()
        if device not in lost
    )
    return len(set[int]().union(*layer_sets)) == plan.num_layers


def moved_fraction(old: Plan, new: Plan, *, lost: Collection[int] = ()) -> float:
    """Return the part of all layers of the new plan's devices that they have to fetch."""
    layers_of = {
        device: layers_there
        for device, layers_there in _layers_by_device(old).items()
        if device not in lost
    }
    needed = _layers_by_device(new)
    lacking = sum(len(layers - layers_of.get(device, set())) for device, layers in needed.items())
    return lacking / sum(map(len, needed.values()))


def _layers_by_device(plan: Plan) -> dict[int, set[int]]:
    layers_of: dict[int, set[int]] = {}
    for pipeline in plan.pipelines:
        for number, device in enumerate(pipeline.devices):
            stages = pipeline.stages(number)
            layers_of[device] = {layer for stage in stages for layer in pipeline.layers(stage)}
    return layers_of
