"""A strategy: how every array of a step is sharded on a mesh, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from jaxpipe.baselines.autoshard.strategy.choice import OperatorChoice
from jaxpipe.baselines.autoshard.strategy.mesh_shape import MeshShape
from jaxpipe.baselines.autoshard.strategy.sharding import Sharding


class ZeroLevel(StrEnum):
    """What the data-parallel devices shard instead of replicating.

    Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.
    """

    NONE = "none"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


def _nothing() -> Mapping[int, OperatorChoice]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How a step is sharded; arrays are named by their paths, operators by their equations.

    A path is the keys of the step's arguments joined by dots, "params.blocks.0.mlp.up.kernel"; it
    starts with the argument's name. An operator is named by the index of its equation in the step's
    inlined jaxpr (`jaxpipe.baselines.autoshard.graph`). `seconds` is the predicted time, `bound_s`
    a lower bound of all strategies; both are None without a prediction.
    """

    name: str
    mesh: MeshShape
    arguments: Mapping[str, Sharding]
    results: Mapping[str, Sharding]
    operators: Mapping[int, OperatorChoice] = field(default_factory=_nothing)
    zero: ZeroLevel = ZeroLevel.NONE
    seconds: float | None = None
    bound_s: float | None = None
