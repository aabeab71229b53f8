"""Codecs: lossy compression of floating-point messages for slow links."""

from jaxpipe.comm.codec.bfloat16 import Bfloat16Codec
from jaxpipe.comm.codec.block_quantized import Float8Codec, Int4Codec, Int8Codec
from jaxpipe.comm.codec.by_name import codec_of
from jaxpipe.comm.codec.codec import Codec, encode_with_feedback, is_codable
from jaxpipe.comm.codec.rotated import RotatedCodec
from jaxpipe.comm.codec.top_k import TopKCodec

__all__ = [
    "Bfloat16Codec",
    "Codec",
    "Float8Codec",
    "Int4Codec",
    "Int8Codec",
    "RotatedCodec",
    "TopKCodec",
    "codec_of",
    "encode_with_feedback",
    "is_codable",
]
