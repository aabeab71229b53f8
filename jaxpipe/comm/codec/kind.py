"""The names of the codecs, for configurations."""

from enum import StrEnum

from jaxpipe.comm.codec.block import Float8Codec, Int8Codec
from jaxpipe.comm.codec.cast import Bfloat16Codec
from jaxpipe.comm.codec.codec import Codec
from jaxpipe.comm.codec.top_k import TopKCodec


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


def codec_of(kind: CodecKind) -> Codec | None:
    """Return the codec of this name with its default settings, None for `none`.

    >>> codec_of(CodecKind.TOP_K)
    TopKCodec(fraction=0.01)
    """
    return {
        CodecKind.NONE: None,
        CodecKind.BF16: Bfloat16Codec(),
        CodecKind.INT8: Int8Codec(),
        CodecKind.FP8: Float8Codec(),
        CodecKind.TOP_K: TopKCodec(),
    }[kind]
