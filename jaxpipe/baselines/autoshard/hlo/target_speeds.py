"""The speeds of the targets, and the predicted time of a step on them.

    step = FLOP / products  +  bytes through memory / memory  +  bytes on a ring / its links

Nothing overlaps. A ring through a group of devices is as fast as the links that one of them has
into the group, together. `targets/speeds.toml` holds the numbers and where they are from.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from jaxpipe.baselines.autoshard.hlo.hlo_collectives import HloCollective
from jaxpipe.baselines.autoshard.hlo.target import CompileTarget

_DTYPES: Final = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpeeds:
    """FLOP/s of products by dtype, bytes/s of a device's memory and of one link.

    `num_links` maps the size of a group to the number of links of a device into it. A device has
    `memory_bytes`; hosts of `host_devices` each have a network card of `host_link_bytes_per_s`.
    """

    products: Mapping[str, float]
    memory_bytes_per_s: float
    link_bytes_per_s: float
    num_links: Mapping[int, int]
    memory_bytes: float
    host_devices: int
    host_link_bytes_per_s: float

    def ring_bytes_per_s(self, group: int) -> float:
        """Return the rate of a ring through a group; nothing limits one device.

        >>> target_speeds(CompileTarget.V100).ring_bytes_per_s(4) / 1e9
        54.0
        """
        if group == 1:
            return math.inf
        # A size that is not listed counts as the whole machine: all links of a device.
        return self.link_bytes_per_s * self.num_links.get(group, max(self.num_links.values()))

    def on_rings_s(self, collectives: Iterable[HloCollective], *, num_devices: int) -> float:
        """Return the seconds of collectives, one after the other, among `num_devices` at most."""
        return sum(
            collective.ring_bytes(num_devices)
            / self.ring_bytes_per_s(collective.group or num_devices)
            for collective in collectives
        )


def target_speeds(target: CompileTarget) -> TargetSpeeds:
    """Return the speeds of a target; a step compiled for the CPU is predicted for V100s."""
    text = (files("jaxpipe.baselines.autoshard.hlo") / "targets" / "speeds.toml").read_text(
        encoding="utf-8"
    )
    table = tomllib.loads(text)["v100" if target is CompileTarget.CPU else target.value]
    return TargetSpeeds(
        products={dtype: table[dtype] for dtype in _DTYPES if dtype in table},
        memory_bytes_per_s=table["memory"],
        link_bytes_per_s=table["link"],
        num_links={int(size): links for size, links in table["links"].items()},
        memory_bytes=table["capacity"],
        host_devices=table["host_devices"],
        host_link_bytes_per_s=table["host_link"],
    )
