"""The names of the codecs, for configurations."""

from enum import StrEnum


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
