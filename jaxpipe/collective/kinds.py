"""Names for configurations and plans: collectives, their algorithms, barriers, and the codecs."""

from enum import StrEnum
from typing import Self

from jaxpipe.collective.all_reduce_facts import AllReduceFacts
from jaxpipe.collective.hierarchical import HALVING, HIERARCHICAL, SHARDED
from jaxpipe.collective.ring import RING
from jaxpipe.collective.tree import CENTRAL, CHAIN, TREE

NATIVE = AllReduceFacts(phases=None, is_searched=False)


class CollectiveKind(StrEnum):
    """The kind of a collective; the values are the names in XLA."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


class AllReduceKind(StrEnum):
    """The algorithm of an all-reduce along a sync tree."""

    facts: AllReduceFacts

    def __new__(cls, name: str, facts: AllReduceFacts) -> Self:
        """Return the member `name`, which is a string and carries its facts."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.facts = facts
        return kind

    # In the order in which a search considers them: of equally fast ones the first wins.
    HIERARCHICAL = "hierarchical", HIERARCHICAL
    """Reduce-scatter in islands, exchange across, all-gather; where islands are far apart."""
    TREE = "tree", TREE
    """Reduce to the tree's leader, broadcast from it: few, large messages."""
    RING = "ring", RING
    """Reduce-scatter and all-gather around all ranks; for equal, fast links."""
    HALVING = "halving", HALVING
    """The same in log2 p rounds, with partners ever farther; for small arrays."""
    SHARDED = "sharded", SHARDED
    """Each rank reduces one share for all others; where any pair is linked."""
    CHAIN = "chain", CHAIN
    """Reduce along the ranks and broadcast back, in chunks; for equal, long links."""
    CENTRAL = "central", CENTRAL
    """The first rank reduces for all others; with one good port."""
    LIBRARY = "library", NATIVE
    """The native all-reduce of the transport's library; MPI only."""


class BarrierKind(StrEnum):
    """The algorithm of a barrier; both take log2 p rounds, rounded up.

    ============== ================================================ ==============================
    dissemination  send to one rank, wait for another               a latency per round
    rendezvous     the same, but a receiver first requests its      a round trip per round, even
                   message                                          for the rank that comes last
    ============== ================================================ ==============================
    """

    DISSEMINATION = "dissemination"
    RENDEZVOUS = "rendezvous"


class CodecKind(StrEnum):
    """The codec of messages on slow links: bytes per value, and which messages it suits.

    ======== ============ ====================================================
    none     unchanged
    bf16     2            activations and gradients
    int8     1 + 1 / 64   activations and gradients, one scale per block
    fp8      1 + 1 / 64   the same; keeps small values next to large ones
    int4     1/2 + 1/16   activations and gradients, smaller blocks, 15 steps
    rotated3 3/8 + 1/64   the same; blocks are rotated, then rounded to 8 levels
    top_k    8 % of one   gradients only, with error feedback
    ======== ============ ====================================================
    """

    NONE = "none"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"
    ROTATED3 = "rotated3"
    TOP_K = "top_k"


class CodecLimit(StrEnum):
    """The codecs among which a plan's are chosen (`jaxpipe.propose.codec_choice`)."""

    NONE = "none"
    """No codecs: messages as they are."""
    SAFE = "safe"
    """Those that cost no loss in our measurements: bf16 and int8."""
    ANY = "any"
    """Also int4, rotated3, and top-k of gradients, which cost loss."""
