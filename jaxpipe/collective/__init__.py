"""Collectives as data: algorithms, sync trees and shards, as steps that any transport can execute.

::

    kind + sync tree ──► steps of each rank ──┬─► comm.collective   executes them
                                              ├─► simulate          derives its transfers from them
                                              └─► plan.cost         prices them

Nothing here imports jax or a transport.
"""

from jaxpipe.collective.algorithms import steps_of
from jaxpipe.collective.kinds import AllReduceKind, CodecKind
from jaxpipe.collective.step import Act, Step
from jaxpipe.collective.sync_tree import SyncTree, leader, ranks, to_leaders

__all__ = [
    "Act",
    "AllReduceKind",
    "CodecKind",
    "Step",
    "SyncTree",
    "leader",
    "ranks",
    "steps_of",
    "to_leaders",
]
