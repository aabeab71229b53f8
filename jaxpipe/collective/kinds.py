"""Names for configurations and plans: collectives, their algorithms, barriers, and the codecs."""

from enum import StrEnum
from typing import Self

from jaxpipe.collective.all_reduce_facts import AllReduceFacts
from jaxpipe.collective.codec.bfloat16 import BF16
from jaxpipe.collective.codec.block_quantized import FP8, INT4, INT8
from jaxpipe.collective.codec.codec_facts import NO_CODING, CodecFacts, CodecLimit
from jaxpipe.collective.codec.rotated import ROTATED3
from jaxpipe.collective.codec.top_k import TOP_K
from jaxpipe.collective.hierarchical import HALVING, HIERARCHICAL, SHARDED
from jaxpipe.collective.ring import RING
from jaxpipe.collective.tree import CENTRAL, CHAIN, TREE

NATIVE = AllReduceFacts(phases=None, is_searched=False)
NO_CODEC = CodecFacts(make=None, coding=NO_CODING, limit=CodecLimit.NONE)


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
    """The codec of messages on slow links: bytes per value, and which messages it suits."""

    facts: CodecFacts

    def __new__(cls, name: str, facts: CodecFacts) -> Self:
        """Return the member `name`, which is a string and carries its facts."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.facts = facts
        return kind

    NONE = "none", NO_CODEC
    """Unchanged."""
    BF16 = "bf16", BF16
    """2 bytes; activations and gradients."""
    INT8 = "int8", INT8
    """1 + 1 / 64 bytes; activations and gradients, one scale per block."""
    FP8 = "fp8", FP8
    """1 + 1 / 64 bytes; the same, and keeps small values next to large ones."""
    INT4 = "int4", INT4
    """1/2 + 1/16 bytes; activations and gradients, smaller blocks, 15 steps."""
    ROTATED3 = "rotated3", ROTATED3
    """3/8 + 1/64 bytes; the same, blocks are rotated, then rounded to 8 levels."""
    TOP_K = "top_k", TOP_K
    """8 % of one byte; gradients only, with error feedback."""
