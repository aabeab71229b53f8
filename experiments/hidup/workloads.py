"""The bars of HiDup's figures 6 to 8 as workloads: cluster, batch and model of each."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.baselines.autoshard.duplex import (
    CollectiveProfile,
    DeviceSpeed,
    between,
    limited,
    published_profiles,
)
from jaxpipe.baselines.autoshard.duplex.duplex_systems import DuplexWorkload
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingLoad
from jaxpipe.baselines.gpt.model_sizes import transformer_sizes
from jaxpipe.baselines.systems import System
from jaxpipe.models import GptConfig, load_preset

MODELS = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
_SETTINGS = tomllib.loads((Path(__file__).parent / "simulated.toml").read_text())
_THREE = (System.HIDUP, System.DEEPSPEED_MOE, System.FASTMOE)
_HOSTS = {6: 8, 7: 1, 8: 2}
_OF_FIGURE = {6: _THREE, 7: (*_THREE, System.HOROVOD, System.DDP), 8: _THREE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The fitted constants.

    Args:
        flops_per_s: speed of a V100 in float32 products, as reached by these models [FLOP/s].
        efficiency: speed of a collective in a step, over that of the published microbenchmark.
        spread: of the logarithm of experts' popularities, which FastMoE does not bound.
    """

    flops_per_s: float
    efficiency: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a figure."""

    figure: int
    condition: str
    model: str
    system: System

    @property
    def group(self) -> tuple[int, str, str]:
        """The bars next to it: figure, condition and model."""
        return self.figure, self.condition, self.model


def fitted() -> Constants:
    """Return the constants that were fitted to the published bars."""
    return Constants(**_SETTINGS["fitted"])


def bars() -> Iterator[Bar]:
    """Yield all bars of the three figures."""
    conditions = {
        6: [f"{number} GPUs" for number in (8, 16, 32, 64)],
        7: [f"{number} GPUs" for number in (2, 4, 8)],
        8: [f"{number} Gbps" for number in (20, 25, 30, 35)],
    }
    for figure, names in conditions.items():
        for condition in names:
            for model in MODELS:
                for system in _OF_FIGURE[figure]:
                    yield Bar(figure=figure, condition=condition, model=model, system=system)


def workload(bar: Bar, constants: Constants) -> DuplexWorkload:
    """Return what a bar measures."""
    profile = cluster(bar.figure, bar.condition)
    config = GptConfig(**load_preset(bar.model))
    routed = _SETTINGS["routed"]["vit" if config.patch else "bert"]
    per_token = config.experts_per_token
    load = RoutingLoad(
        num_experts=routed_experts(bar.model, devices=profile.devices),
        num_devices=profile.devices,
        experts_per_token=per_token,
        capacity_factor=config.capacity_factor / per_token,
        tokens=routed["tokens"],
        sequences=_SETTINGS["batch"][str(bar.figure)],
        spread=constants.spread,
        whole_slots=False,
    )
    # As published, the token table is looked up for the samples of a device.
    sizes = replace(transformer_sizes(config), splits_table=False)
    if not config.patch:
        # As published: the vocabulary is padded to a multiple of the devices.
        padded = -(-config.vocabulary // profile.devices) * profile.devices
        sizes = replace(sizes, vocabulary=padded, outputs=padded)
    device = DeviceSpeed(flops_per_s=constants.flops_per_s, **_SETTINGS["device"])
    return DuplexWorkload(
        sizes=sizes,
        load=load,
        device=device,
        profile=profile.scaled(constants.efficiency),
        throughput=tuple(zip(*_SETTINGS["throughput"].values(), strict=True)),
        hosts=_HOSTS[bar.figure],
        group_s=_SETTINGS["groups"]["group_s"],
        # The published benchmark of FastMoE never calls its all-reduce.
        unsummed=frozenset({System.FASTMOE}),
    )


def routed_experts(model: str, *, devices: int) -> int:
    """Return the experts of a layer: as many for each device as published.

    >>> routed_experts("vit-switch", devices=8)
    16
    """
    kind = model.partition("-")[0]
    return _SETTINGS["routed"][kind]["experts_per_device"] * devices


def cluster(figure: int, condition: str) -> CollectiveProfile:
    """Return the published profile of a figure's cluster, or one between published ones."""
    known, number = published_profiles(), int(condition.split(maxsplit=1)[0])
    if figure == 7:
        return known[f"v100-1x{number}"]
    if figure == 8:
        slow, fast = known["v100-2x4-10gbps"], known["v100-2x4-20gbps"]
        return fast if number == 20 else limited(slow, fast, limits=(10, 20), limit=number)
    low, high = known["v100-8x1-9.7gbps"], known["v100-8x8-9.7gbps"]
    if number == low.devices:
        return low
    return high if number == high.devices else between(low, high, devices=number)
