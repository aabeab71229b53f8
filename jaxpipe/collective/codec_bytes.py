"""Bytes per value of each codec, for planners and simulators, which need no codec."""

from jaxpipe.collective.kinds import CodecKind

BLOCK = 256
"""Values that share a scale of 4 bytes in the block-quantized codecs."""


def bytes_per_value(codec: CodecKind, *, top_k_fraction: float = 0.01) -> float:
    """Return the bytes in which a codec sends a float32 value, in long messages.

    >>> [bytes_per_value(codec) for codec in (CodecKind.NONE, CodecKind.INT8)]
    [4.0, 1.015625]
    """
    return {
        CodecKind.NONE: 4.0,
        CodecKind.BF16: 2.0,
        CodecKind.INT8: 1 + 4 / BLOCK,
        CodecKind.FP8: 1 + 4 / BLOCK,
        CodecKind.TOP_K: 8 * top_k_fraction,
    }[codec]
