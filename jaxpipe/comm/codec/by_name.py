"""Codecs by the name that configurations use."""

from jaxpipe.collective.kinds import CodecKind
from jaxpipe.comm.codec.bfloat16 import Bfloat16Codec
from jaxpipe.comm.codec.block_quantized import Float8Codec, Int4Codec, Int8Codec
from jaxpipe.comm.codec.codec import Codec
from jaxpipe.comm.codec.rotated import RotatedCodec
from jaxpipe.comm.codec.top_k import TopKCodec


def codec_of(kind: CodecKind, *, top_k_fraction: float = 0.01) -> Codec | None:
    """Return the codec of a kind, None for `none`; `top_k` keeps `top_k_fraction` of all values.

    >>> codec_of(CodecKind.TOP_K, top_k_fraction=0.1)
    TopKCodec(fraction=0.1)
    """
    return {
        CodecKind.NONE: None,
        CodecKind.BF16: Bfloat16Codec(),
        CodecKind.INT8: Int8Codec(),
        CodecKind.FP8: Float8Codec(),
        CodecKind.INT4: Int4Codec(),
        CodecKind.ROTATED3: RotatedCodec(),
        CodecKind.TOP_K: TopKCodec(fraction=top_k_fraction),
    }[kind]
