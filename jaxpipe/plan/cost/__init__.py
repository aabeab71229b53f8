"""What a plan costs, in closed form: links, collectives, layers and memory."""

from jaxpipe.network.alpha_beta import Links, links_between, uniform_links
from jaxpipe.plan.cost.collective import (
    central_s,
    chain_s,
    hierarchical_s,
    num_chunks,
    ring_s,
    sharded_s,
    tree_s,
)
from jaxpipe.plan.cost.estimate import Estimate, estimate, slowness
from jaxpipe.plan.cost.memory import (
    BytesPerParameter,
    StageMemory,
    live_limits,
    overfull,
    stage_memory,
)
from jaxpipe.plan.cost.profile import Part, Profile, flop_profile, read_profile, write_profile
from jaxpipe.plan.cost.shares import halving_s, shares_s

__all__ = [
    "BytesPerParameter",
    "Estimate",
    "Links",
    "Part",
    "Profile",
    "StageMemory",
    "central_s",
    "chain_s",
    "estimate",
    "flop_profile",
    "halving_s",
    "hierarchical_s",
    "links_between",
    "live_limits",
    "num_chunks",
    "overfull",
    "read_profile",
    "ring_s",
    "sharded_s",
    "shares_s",
    "slowness",
    "stage_memory",
    "tree_s",
    "uniform_links",
    "write_profile",
]
