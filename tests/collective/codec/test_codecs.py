"""Every codec: its size in closed form, and how far it may err."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from jaxpipe.collective import CodecKind
from jaxpipe.collective.codec.bfloat16 import Bfloat16Codec
from jaxpipe.collective.codec.block_quantized import (
    BLOCK,
    INT4_BLOCK,
    Float8Codec,
    Int4Codec,
    Int8Codec,
)
from jaxpipe.collective.codec.codec import Codec, encode_with_feedback
from jaxpipe.collective.codec.codec_facts import CodecLimit
from jaxpipe.collective.codec.codecs import bytes_per_value, codec_of, codecs_within
from jaxpipe.collective.codec.rotated import BLOCK as ROTATED_BLOCK
from jaxpipe.collective.codec.rotated import RotatedCodec
from jaxpipe.collective.codec.top_k import TopKCodec

CODECS: list[Codec] = [
    Bfloat16Codec(),
    Int8Codec(),
    Float8Codec(),
    Int4Codec(),
    RotatedCodec(),
    TopKCodec(fraction=0.01),
    TopKCodec(fraction=1.0),
]
SIZES = [0, 1, 2, 255, 256, 257, 1_000]
TINY = float(np.finfo(np.float32).tiny)
ANY_VALUES = st.integers(0, 600).flatmap(
    lambda size: arrays_of.arrays(
        np.float32, size, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)


def round_trip(codec: Codec, values: np.ndarray) -> np.ndarray:
    return codec.decode(codec.encode(values), size=values.size)


def block_maxima(values: np.ndarray, block: int = BLOCK) -> np.ndarray:
    """Return for each value the largest magnitude of its block."""
    starts = np.arange(0, values.size, block)
    maxima = [np.abs(values[start : start + block]).max() for start in starts]
    return np.repeat(np.array(maxima, np.float64), block)[: values.size]


def bfloat16_bound(values: np.ndarray) -> np.ndarray:
    return np.abs(values.astype(np.float64)) * 2.0**-8 + 2.0**-134


def int8_bound(values: np.ndarray) -> np.ndarray:
    return block_maxima(values) / 254 * (1 + 1e-5) + 127 * TINY


def int4_bound(values: np.ndarray) -> np.ndarray:
    return block_maxima(values, INT4_BLOCK) / 14 * (1 + 1e-5) + 7 * TINY


def float8_bound(values: np.ndarray) -> np.ndarray:
    largest = block_maxima(values)
    relative = np.abs(values.astype(np.float64)) * (2.0**-4 + 2.0**-10)
    return np.maximum(relative, largest / 448 * 2.0**-10 * 1.01) + 448 * TINY


def nothing_lost(values: np.ndarray) -> np.ndarray:
    return np.zeros(values.size)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("size", SIZES)
def test_the_size_is_known_in_advance(codec: Codec, size: int):
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    encoded = codec.encode(values)
    assert encoded.dtype == np.uint8
    assert encoded.shape == (codec.num_bytes(size=size),)
    decoded = codec.decode(encoded, size=size)
    assert decoded.dtype == np.float32
    assert decoded.shape == (size,)
    assert decoded.flags.writeable


@pytest.mark.parametrize(
    ("codec", "size", "num_bytes"),
    [
        (Bfloat16Codec(), 1_000, 2_000),
        (Int8Codec(), 1_000, 1_016),
        (Float8Codec(), 257, 265),
        (Int4Codec(), 1_001, 565),
        (RotatedCodec(), 1_001, 8 * 50),
        (TopKCodec(fraction=0.01), 1_001, 88),
        (TopKCodec(fraction=0.01), 1, 8),
    ],
    ids=repr,
)
def test_the_size_in_closed_form(codec: Codec, size: int, num_bytes: int):
    assert codec.num_bytes(size=size) == num_bytes


@pytest.mark.parametrize(
    ("codec", "bound"),
    [
        (Bfloat16Codec(), bfloat16_bound),
        (Int8Codec(), int8_bound),
        (Float8Codec(), float8_bound),
        (Int4Codec(), int4_bound),
        (TopKCodec(fraction=1.0), nothing_lost),
    ],
    ids=["bf16", "int8", "fp8", "int4", "all"],
)
@settings(deadline=None)
@given(values=ANY_VALUES)
def test_errs_within_its_bound(
    codec: Codec, bound: Callable[[np.ndarray], np.ndarray], values: np.ndarray
):
    values = np.where(np.abs(values) > 3e38, np.float32(0), values)  # bf16 may round these up
    decoded = round_trip(codec, values)
    assert np.all(np.abs(decoded.astype(np.float64) - values) <= bound(values))
    assert np.all(decoded[values == 0] == 0)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@given(values=ANY_VALUES)
@settings(max_examples=30, deadline=None)
def test_leaves_the_values_alone_and_repeats_its_bytes(codec: Codec, values: np.ndarray):
    before = values.tobytes()
    assert codec.encode(values).tobytes() == codec.encode(values).tobytes()
    assert values.tobytes() == before


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 256, 700])
def test_what_is_not_finite_stays_so(codec: Codec, value: float, size: int):
    values = np.ones(size, np.float32)
    values[-1] = value
    decoded = round_trip(codec, values)
    assert not np.isfinite(decoded[-1])
    assert np.all(np.isfinite(decoded[: (size - 1) // BLOCK * BLOCK]))


@pytest.mark.parametrize(
    "kind", [CodecKind.BF16, CodecKind.INT8, CodecKind.FP8, CodecKind.INT4, CodecKind.ROTATED3]
)
@pytest.mark.parametrize("rest", [-1, 0, 1, 300])
def test_a_long_message_is_its_blocks_one_after_the_other(kind: CodecKind, rest: int):
    """Codecs work piece by piece: no block depends on where a piece ends."""
    codec = codec_of(kind)
    assert codec is not None
    values = np.random.default_rng(7).standard_normal(2 * 2**16 + rest).astype(np.float32)
    alone = [
        round_trip(codec, values[start : start + BLOCK]) for start in range(0, values.size, BLOCK)
    ]
    np.testing.assert_array_equal(round_trip(codec, values), np.concatenate(alone))


@pytest.mark.parametrize("spread", [0.0, 30.0], ids=["normal", "outliers"])
def test_rotated_blocks_err_by_a_fifth_of_their_norm_whatever_sticks_out(spread: float):
    random = np.random.default_rng(3)
    rare = np.where(random.random(2**16) < 0.01, 1 + spread, 1.0)
    values = (random.standard_normal(2**16) * rare).astype(np.float32)
    error = round_trip(RotatedCodec(), values) - values
    assert np.linalg.norm(error) == pytest.approx(0.19 * np.linalg.norm(values), rel=0.15)


@given(
    values=st.integers(1, 600).flatmap(
        lambda size: arrays_of.arrays(
            np.float32, size, elements=st.floats(-(2.0**100), 2.0**100, width=32)
        )
    )
)
@settings(deadline=None)
def test_rotated_blocks_err_at_right_angles_to_themselves(values: np.ndarray):
    decoded = round_trip(RotatedCodec(), values).astype(np.float64)
    for start in range(0, values.size, ROTATED_BLOCK):
        block = values[start : start + ROTATED_BLOCK].astype(np.float64)
        square = float(block @ block)
        # The factor is a bfloat16; blocks of subnormal values become zeros.
        inner = float(block @ decoded[start : start + ROTATED_BLOCK])
        assert inner == pytest.approx(square, rel=2.0**-7) or np.abs(block).max() < TINY


@given(values=ANY_VALUES, fraction=st.floats(0.01, 1.0))
@settings(deadline=None)
def test_top_k_keeps_the_largest_as_they_are(values: np.ndarray, fraction: float):
    codec = TopKCodec(fraction=fraction)
    decoded = round_trip(codec, values)
    kept = decoded != 0
    np.testing.assert_array_equal(decoded[kept], values[kept])
    smallest_kept = np.abs(values[kept]).min(initial=np.inf)
    num_kept = min(np.count_nonzero(values), codec.num_kept(size=values.size))
    assert np.count_nonzero(kept) == num_kept
    assert np.all(np.abs(values[~kept]) <= smallest_kept)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 300]))
def test_with_feedback_nothing_is_lost_in_the_long_run(codec: Codec, seed: int, size: int):
    rng = np.random.default_rng(seed)
    error, told, true = np.zeros(size, np.float32), np.zeros(size), np.zeros(size)
    for _ in range(20):
        values = rng.normal(size=size).astype(np.float32)
        encoded, error = encode_with_feedback(codec, values, error)
        told += codec.decode(encoded, size=size)
        true += values
    np.testing.assert_allclose(told + error, true, atol=1e-4)


def test_feedback_tells_of_an_overflow_once():
    values = np.array([np.inf], np.float32)
    for codec in CODECS:
        encoded, error = encode_with_feedback(codec, values, np.zeros(1, np.float32))
        assert not np.isfinite(codec.decode(encoded, size=1)[0])
        assert error.tolist() == [0.0]


def test_every_kind_has_a_codec_but_none():
    assert codec_of(CodecKind.NONE) is None
    kinds = [kind for kind in CodecKind if kind is not CodecKind.NONE]
    assert all(isinstance(codec_of(kind), Codec) for kind in kinds)


@pytest.mark.parametrize("kind", CodecKind)
def test_the_bytes_of_a_value_are_those_of_a_long_message(kind: CodecKind):
    codec = codec_of(kind)
    values = np.ones(2**16, np.float32)
    num_bytes = values.nbytes if codec is None else codec.encode(values).size
    # Rounded up to whole values by top-k, of which a message of this length keeps 656.
    assert bytes_per_value(kind) == pytest.approx(num_bytes / values.size, rel=1e-3)


def test_a_wider_limit_has_the_codecs_of_a_narrower_one():
    for for_gradients in (False, True):
        none, safe, every = (
            list(codecs_within(limit, for_gradients=for_gradients)) for limit in CodecLimit
        )
        assert none == [CodecKind.NONE] == safe[:1] == every[:1]
        assert set(safe) < set(every)
        assert [*map(bytes_per_value, every)] == sorted(map(bytes_per_value, every), reverse=True)
    assert CodecKind.TOP_K not in codecs_within(CodecLimit.ANY, for_gradients=False)
