"""Sharding strategies as data: the sharding of every array of a step, and its cost."""

from jaxpipe.baselines.autoshard.strategy.by_hand import Shapes, by_hand
from jaxpipe.baselines.autoshard.strategy.choice import OperatorChoice, PartialSum, parse_choice
from jaxpipe.baselines.autoshard.strategy.draw_strategy import draw_collectives, draw_strategy
from jaxpipe.baselines.autoshard.strategy.jax_interop import (
    jax_mesh,
    named_sharding,
    partition_spec,
)
from jaxpipe.baselines.autoshard.strategy.mesh_collective import (
    Collective,
    CollectiveKind,
    collective_s,
    latency_s,
    wire_s,
)
from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axes, Axis, AxisLink, MeshShape, mesh_on
from jaxpipe.baselines.autoshard.strategy.pins import Pins, pins_from, read_pins
from jaxpipe.baselines.autoshard.strategy.sharding import (
    Sharding,
    parse_sharding,
    replicated,
    split_along,
)
from jaxpipe.baselines.autoshard.strategy.strategy import Strategy, ZeroLevel
from jaxpipe.baselines.autoshard.strategy.strategy_file import (
    parse_strategy,
    read_strategy,
    strategy_text,
    write_strategy,
)

__all__ = [
    "Axes",
    "Axis",
    "AxisLink",
    "Collective",
    "CollectiveKind",
    "MeshShape",
    "OperatorChoice",
    "PartialSum",
    "Pins",
    "Shapes",
    "Sharding",
    "Strategy",
    "ZeroLevel",
    "by_hand",
    "collective_s",
    "draw_collectives",
    "draw_strategy",
    "jax_mesh",
    "latency_s",
    "mesh_on",
    "named_sharding",
    "parse_choice",
    "parse_sharding",
    "parse_strategy",
    "partition_spec",
    "pins_from",
    "read_pins",
    "read_strategy",
    "replicated",
    "split_along",
    "strategy_text",
    "wire_s",
    "write_strategy",
]
