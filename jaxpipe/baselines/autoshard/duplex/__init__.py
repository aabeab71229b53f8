"""HiDup's search: a step in two halves, where collectives of one hide behind compute of the other.

::

    sizes of a model ──► graph of operators ──┐
    profile of collectives, speed of a device ┴─► search ──► strategy, its stages, predicted seconds

Nothing here imports jax, and times are predictions. `jaxpipe.baselines.autoshard.duplex_step` makes
what was found the strategy of a traced step, which `jaxpipe.baselines.autoshard.spmd` executes.

Source: Zhang et al., "HiDup", SoCC 2022.
"""

from jaxpipe.baselines.autoshard.duplex.collective_profile import (
    CollectiveProfile,
    between,
    find_profile,
    limited,
    parse_profiles,
    profile_text,
    published_profiles,
)
from jaxpipe.baselines.autoshard.duplex.decision import OperatorDecision, Strategy
from jaxpipe.baselines.autoshard.duplex.duplex_search import DuplexResult, search
from jaxpipe.baselines.autoshard.duplex.form import (
    FULL,
    PARTIAL,
    Form,
    backward_conversion,
    conversion,
    dual,
    sharded,
)
from jaxpipe.baselines.autoshard.duplex.labelled_graph import (
    LabelledGraph,
    LabelledOperator,
    Linearity,
)
from jaxpipe.baselines.autoshard.duplex.operator_cost import CostModel, DeviceSpeed
from jaxpipe.baselines.autoshard.duplex.signature import Signature, signatures
from jaxpipe.baselines.autoshard.duplex.stage_seconds import memory_bytes, step_s
from jaxpipe.baselines.autoshard.duplex.transformer_graph import (
    ExpertSizes,
    TransformerSizes,
    transformer_graph,
)

__all__ = [
    "FULL",
    "PARTIAL",
    "CollectiveProfile",
    "CostModel",
    "DeviceSpeed",
    "DuplexResult",
    "ExpertSizes",
    "Form",
    "LabelledGraph",
    "LabelledOperator",
    "Linearity",
    "OperatorDecision",
    "Signature",
    "Strategy",
    "TransformerSizes",
    "backward_conversion",
    "between",
    "conversion",
    "dual",
    "find_profile",
    "limited",
    "memory_bytes",
    "parse_profiles",
    "profile_text",
    "published_profiles",
    "search",
    "sharded",
    "signatures",
    "step_s",
    "transformer_graph",
]
