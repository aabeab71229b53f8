"""The names of the ways to sum an array over ranks: what a plan chooses among.

The names of the codecs, for configurations.
"""

from enum import StrEnum


class AllReduceKind(StrEnum):
    """How an all-reduce along a sync tree moves its bytes; n bytes over p ranks.

    ============== ========================================================== ==================
    tree           sums ascend the sync tree to its leader, and descend       few, large messages
    hierarchical   islands share the sum out, exchange shares, and gather     islands far apart
    ring           reduce-scatter and all-gather along the ranks              equal, fast links
    halving        the same in log2 p rounds, with partners ever farther      small arrays
    chain          along the ranks to the first, and back, in chunks          equal, long links
    sharded        each rank serves one share to all others                   any pair is linked
    central        the first rank serves all others                           one good port
    library        as the transport's own library does                        MPI only
    ============== ========================================================== ==================
    """

    TREE = "tree"
    HIERARCHICAL = "hierarchical"
    RING = "ring"
    HALVING = "halving"
    CHAIN = "chain"
    SHARDED = "sharded"
    CENTRAL = "central"
    LIBRARY = "library"


class CodecKind(StrEnum):
    """How values travel over slow links: bytes a value, and whether errors should be fed back.

    ======== ============ =============================================
    none     as they are
    bf16     2            for activations and gradients
    int8     1 + 1 / 64   for activations and gradients, range of a block
    fp8      1 + 1 / 64   the same, keeps small values beside large ones
    top_k    8 % of one   for gradients only, with feedback
    ======== ============ =============================================
    """

    NONE = "none"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    TOP_K = "top_k"
