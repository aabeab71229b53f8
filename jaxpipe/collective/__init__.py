"""Collectives as data: algorithms, sync trees and shards, as steps that any transport can execute.

::

    kind + sync tree ──► steps of each rank ──┬─► comm.collective   executes them
                                              ├─► simulate          derives its transfers from them
                                              └─► plan.cost         prices them

Nothing here imports jax or a transport.
"""

from jaxpipe.collective.algorithms import (
    all_gather_steps,
    all_reduce_steps,
    all_to_all_steps,
    broadcast_steps,
    reduce_scatter_steps,
)
from jaxpipe.collective.codec.codec_facts import NO_CODING, CodecLimit, Coding
from jaxpipe.collective.codec.codecs import (
    NO_CODECS,
    Codecs,
    CodingRates,
    codec_of,
    codecs_within,
    coding_of,
)
from jaxpipe.collective.kinds import AllReduceKind, BarrierKind, CodecKind
from jaxpipe.collective.step import Act, Step, reduce_and_broadcast
from jaxpipe.collective.sync_tree import SyncTree, leader, ranks, to_leaders
from jaxpipe.collective.transfers import (
    Collective,
    Transfer,
    all_gather_transfers,
    all_reduce_transfers,
    all_to_all_transfers,
    barrier_transfers,
    broadcast_transfers,
    reduce_scatter_transfers,
    reduce_transfers,
    transfers,
)

__all__ = [
    "NO_CODECS",
    "NO_CODING",
    "Act",
    "AllReduceKind",
    "BarrierKind",
    "CodecKind",
    "CodecLimit",
    "Codecs",
    "Coding",
    "CodingRates",
    "Collective",
    "Step",
    "SyncTree",
    "Transfer",
    "all_gather_steps",
    "all_gather_transfers",
    "all_reduce_steps",
    "all_reduce_transfers",
    "all_to_all_steps",
    "all_to_all_transfers",
    "barrier_transfers",
    "broadcast_steps",
    "broadcast_transfers",
    "codec_of",
    "codecs_within",
    "coding_of",
    "leader",
    "ranks",
    "reduce_and_broadcast",
    "reduce_scatter_steps",
    "reduce_scatter_transfers",
    "reduce_transfers",
    "to_leaders",
    "transfers",
]
