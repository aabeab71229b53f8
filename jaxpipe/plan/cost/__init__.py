"""Cost model of plans: links, collectives, layers and memory."""

from jaxpipe.network.alpha_beta import Links, links_between, uniform_links
from jaxpipe.plan.cost.collective_cost import ring_s, transfers_s, tree_s
from jaxpipe.plan.cost.estimate import Estimate, estimate, slowness
from jaxpipe.plan.cost.group_cost import SharedStage, shared_part
from jaxpipe.plan.cost.layer_profile import (
    NO_SOFTWARE,
    Part,
    Profile,
    Software,
    flop_profile,
)
from jaxpipe.plan.cost.lower_bound import LowerBound, lower_bound
from jaxpipe.plan.cost.memory import (
    BytesPerParameter,
    StageMemory,
    live_limits,
    overfull,
    stage_memory,
)
from jaxpipe.plan.cost.profile_file import read_profile, write_profile

__all__ = [
    "NO_SOFTWARE",
    "BytesPerParameter",
    "Estimate",
    "Links",
    "LowerBound",
    "Part",
    "Profile",
    "SharedStage",
    "Software",
    "StageMemory",
    "estimate",
    "flop_profile",
    "links_between",
    "live_limits",
    "lower_bound",
    "overfull",
    "read_profile",
    "ring_s",
    "shared_part",
    "slowness",
    "stage_memory",
    "transfers_s",
    "tree_s",
    "uniform_links",
    "write_profile",
]
