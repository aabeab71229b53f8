"""Messages shrink in proportion, and never to nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.collective import Transfer
from jaxpipe.errors import ConfigError
from jaxpipe.paced import Scale
from jaxpipe.schedule import Bucket
from tests.paced.test_execute import published_job

SCALES = st.floats(1e-6, 1.0).map(lambda message: Scale(message=message))


@given(SCALES, st.floats(0.0, 1e12))
def test_a_message_stands_for_about_its_bytes(scale: Scale, meant: float):
    small = scale.num_bytes(meant)
    assert (small == 0) == (meant == 0)
    assert scale.message is not None
    assert abs(scale.meant(small) - meant) <= 1 / scale.message


@given(SCALES, st.floats(1.0, 1e9), st.floats(1.0, 1e9))
def test_larger_messages_stay_larger(scale: Scale, one: float, other: float):
    assert (scale.num_bytes(one) <= scale.num_bytes(other)) or one > other


@pytest.mark.parametrize("largest", [0.0, 100.0, 8e6, 5e8])
def test_the_largest_message_fits(largest: float):
    sums = {Bucket.STAGE: ((Transfer(0, 1, largest),),)}
    job = replace(published_job(batch=2), activation_bytes=1000.0, collectives=sums)
    scale = Scale().fitted(job)
    assert scale.message is not None
    assert scale.message <= 1
    assert scale.num_bytes(max(largest, 1000.0)) <= 2048
    assert Scale(message=0.5).fitted(job) == Scale(message=0.5)


@pytest.mark.parametrize("field", ["message", "time"])
def test_nothing_is_no_scale(field: str):
    with pytest.raises(ConfigError, match=f"`{field}` must be above 0, not 0"):
        Scale(**{field: 0.0})
