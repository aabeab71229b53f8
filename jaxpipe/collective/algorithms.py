"""Which steps sum a flat array over the ranks of a sync tree, by the name of the algorithm."""

from collections.abc import Callable

from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.collective.reduce_scatter import share_phases
from jaxpipe.collective.ring import ring_phases
from jaxpipe.collective.shards import Part
from jaxpipe.collective.step import Phases, Step, weave
from jaxpipe.collective.sync_tree import SyncTree, chain, flat, halves, ranks
from jaxpipe.collective.tree import tree_phases

_PHASES: dict[AllReduceKind, Callable[[SyncTree, int, Part], Phases]] = {
    AllReduceKind.TREE: tree_phases,
    AllReduceKind.HIERARCHICAL: share_phases,
    AllReduceKind.RING: lambda tree, rank, chunk: ring_phases(ranks(tree), rank, chunk),
    AllReduceKind.HALVING: lambda tree, rank, chunk: share_phases(halves(ranks(tree)), rank, chunk),
    AllReduceKind.CHAIN: lambda tree, rank, chunk: tree_phases(chain(ranks(tree)), rank, chunk),
    AllReduceKind.SHARDED: lambda tree, rank, chunk: share_phases(flat(ranks(tree)), rank, chunk),
    AllReduceKind.CENTRAL: lambda tree, rank, chunk: tree_phases(flat(ranks(tree)), rank, chunk),
}

_WHOLE = {AllReduceKind.TREE, AllReduceKind.CHAIN, AllReduceKind.CENTRAL}
"""Those that send chunks as they are; the others send shares of them."""


def steps_of(
    algorithm: AllReduceKind, tree: SyncTree, rank: int, *, size: int, message_size: int
) -> list[Step]:
    """Return the steps of `rank` on `size` elements, in messages of about `message_size` elements.

    >>> for step in steps_of(AllReduceKind.CHAIN, (0, 1), 0, size=8, message_size=4):
    ...     print(step.act.name, tuple(step.part))
    ADD (0, 4)
    SETTLE (0, 4)
    SEND (0, 4)
    ADD (4, 8)
    SETTLE (4, 8)
    SEND (4, 8)
    """
    per_chunk = message_size * (1 if algorithm in _WHOLE else len(ranks(tree)))
    chunks = Part(0, size).cut(-(-size // per_chunk)) if size else ()
    phases_of = _PHASES[algorithm]
    return list(weave(lambda chunk: phases_of(tree, rank, chunk), chunks))
