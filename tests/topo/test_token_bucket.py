"""Token buckets in the words of tc."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.topo.token_bucket import TokenBucket, parse_rate, parse_size, parse_time


@given(
    st.floats(1e3, 1e12),
    st.none() | st.integers(1514, 2**32 - 1),
    st.floats(1e-3, 3600.0),
)
def test_what_is_written_is_read_again(rate: float, burst: int | None, latency: float):
    bucket = TokenBucket(bytes_per_s=rate, burst_bytes=burst, latency_s=latency)
    name, _, rate_word, _, burst_word, _, latency_word = bucket.words
    assert name == "tbf"
    assert parse_rate(rate_word) == pytest.approx(rate, abs=1 / 16)
    assert burst is None or parse_size(burst_word) == burst
    assert parse_time(latency_word) == pytest.approx(latency, abs=1e-6)  # a microsecond


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [("30gibit", 30 * 2**30), ("1Gbit", 1e9), ("2.5mbit", 2.5e6), ("1bps", 8), ("8bit", 8)],
)
def test_rates_have_the_units_of_tc(text: str, bits_per_s: float):
    assert 8 * parse_rate(text) == bits_per_s


@pytest.mark.parametrize("text", ["", "gbit", "-1gbit", "1e9bit", "10", "1 gbit", "infbit"])
def test_what_is_no_rate_is_refused(text: str):
    with pytest.raises(ValueError, match="`rate` must be a number and one of bit, bps"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bytes_per_s": 0.0}, "`rate` must be from 8 bit/s"),
        ({"burst_bytes": 2.0**32}, "`burst` must be from 1514 bytes, .* to below 4 GiB"),
        ({"burst_bytes": 1.0}, "`burst` must be from 1514 bytes, a packet, without which nothing"),
        ({"latency_s": float("nan")}, "`latency` must be from 1 us"),
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, float], words: str):
    with pytest.raises(ValueError, match=words):
        TokenBucket(**({"bytes_per_s": 1e9} | changes))
