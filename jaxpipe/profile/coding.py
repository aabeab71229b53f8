"""Seconds in which one core of this host encodes and decodes a value, for each codec."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpipe.collective import CodecKind, Coding, CodingRates, codec_of
from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.profile.timing import Clock, time_in_turn

_VALUES = 2**20
"""As long as the messages of large models, of which a core's cache holds a small part."""


def measure_coding(settings: MeasureConfig, *, clock: Clock) -> CodingRates:
    """Return the medians of all codecs but `none`, measured in turn on normal random values."""
    values = np.random.default_rng(settings.seed).standard_normal(_VALUES).astype(np.float32)
    kinds, calls = [kind for kind in CodecKind if kind is not CodecKind.NONE], []
    for kind in kinds:
        calls += _calls(kind, values)
    timings = time_in_turn(
        calls,
        warmup=settings.warmup,
        repeats=settings.repeats,
        budget_s=settings.budget_s,
        clock=clock,
    )
    each_s = [timing.median_s / _VALUES for timing in timings]
    return {
        kind: Coding(encode_s=encode_s, decode_s=decode_s)
        for kind, encode_s, decode_s in zip(kinds, each_s[::2], each_s[1::2], strict=True)
    }


def _calls(kind: CodecKind, values: np.ndarray) -> tuple[Callable[[], Any], Callable[[], Any]]:
    codec = codec_of(kind)
    assert codec is not None, kind
    encoded = codec.encode(values)
    return lambda: codec.encode(values), lambda: codec.decode(encoded, size=values.size)
