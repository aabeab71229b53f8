"""The mathematics of outer loops: islands that train apart, and share an outer step at times.

- `outer_step`: outer gradients, Nesterov momentum, mixing, weights by tokens
- `fragments`: which parameters take their outer steps together
- `timetable`: after which inner steps they do
- `outer_config`: the section `[outer]` of a configuration
- `quorum`: islands that are runs of their own, which a server merges; the section `[quorum]`
- `merge_log`: what such a server has done; `merge_lineage`: what its islands have trained for it

Nothing here needs jax or a transport: `jaxpipe.runtime.outer` runs it.
"""

from jaxpipe.outer.eager_step import EagerState, eager_step, fresh_lead
from jaxpipe.outer.fragment_timetable import OuterAction, OuterEvent, OuterTimetable
from jaxpipe.outer.fragments import check_fragments, fragment_of, fragments
from jaxpipe.outer.outer_config import OuterConfig, saved_outer
from jaxpipe.outer.outer_update import (
    MEAN,
    OuterOptimizer,
    OuterState,
    fresh_state,
    mean_step,
    mixed,
    outer_gradient,
    outer_step,
    token_weights,
)
from jaxpipe.outer.quorum import QuorumConfig, ServerLine

__all__ = [
    "MEAN",
    "EagerState",
    "OuterAction",
    "OuterConfig",
    "OuterEvent",
    "OuterOptimizer",
    "OuterState",
    "OuterTimetable",
    "QuorumConfig",
    "ServerLine",
    "check_fragments",
    "eager_step",
    "fragment_of",
    "fragments",
    "fresh_lead",
    "fresh_state",
    "mean_step",
    "mixed",
    "outer_gradient",
    "outer_step",
    "saved_outer",
    "token_weights",
]
