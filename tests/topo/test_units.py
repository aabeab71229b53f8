"""What goes into SI units comes out again."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.topo import units

Conversion = Callable[[float], float]


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (units.seconds_from_ms, units.ms_from_seconds),
        (units.bytes_per_s_from_gbps, units.gbps_from_bytes_per_s),
        (units.flops_per_s_from_tflops, units.tflops_from_flops_per_s),
    ],
)
@given(number=st.floats(0, 1e6))
def test_conversions_invert_each_other(there: Conversion, back: Conversion, number: float):
    assert back(there(number)) == pytest.approx(number)


def test_a_gigabit_is_decimal_and_a_gibibyte_binary():
    assert units.bytes_per_s_from_gbps(8) == 1e9
    assert units.bytes_from_gib(1) == 2**30
