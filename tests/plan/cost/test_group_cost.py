"""Stages that several devices share, against closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.plan import Sharing
from jaxpipe.plan.cost import Part, SharedStage, shared_part
from tests.simulate.uniform import cluster

LATENCY_S, RATE = 0.25, 8.0


def stage_of(degree: int, **changes: object) -> SharedStage:
    fields = {
        "group": tuple(range(degree)),
        "num_layers": 3,
        "activation_bytes": 16.0,
        "gradient_bytes": 40.0,
    }
    return SharedStage(**(fields | changes))  # pyright: ignore[reportArgumentType]


def all_reduce_s(degree: int, num_bytes: float) -> float:
    """Return the seconds of a ring of equal links."""
    return 2 * (degree - 1) * (LATENCY_S + num_bytes / degree / RATE)


WHOLE = Part(forward_s=6.0, backward_s=12.0, backward_weight_s=5.0, update_s=4.0, parameters=10)


@given(st.integers(2, 8), st.booleans(), st.booleans(), st.booleans())
def test_layers_all_reduce_twice_in_each_direction(
    degree: int, is_first: bool, is_last: bool, recomputes: bool
):
    where = cluster(8, latency_s=LATENCY_S, bytes_per_s=RATE)
    stage = stage_of(degree, is_first=is_first, is_last=is_last, recomputes=recomputes)
    found = shared_part(WHOLE, stage, Sharing.TENSOR, where)
    each_s = all_reduce_s(degree, 16.0)
    assert found.forward_s == pytest.approx(6 / degree + (6 + is_first) * each_s)
    back = 6 * (1 + recomputes) + is_last
    assert found.backward_s == pytest.approx(12 / degree + back * each_s)
    assert found.backward_weight_s == pytest.approx(5 / degree)
    assert found.update_s == pytest.approx(4 / degree + all_reduce_s(degree, 40.0) / 2)
    assert found.parameters == WHOLE.parameters


@given(st.integers(2, 8), st.booleans())
def test_parts_of_sequences_are_gathered_twice_more_in_a_backward(degree: int, recomputes: bool):
    where = cluster(8, latency_s=LATENCY_S, bytes_per_s=RATE)
    stage = stage_of(degree, recomputes=recomputes)
    tensor, parts = (
        shared_part(WHOLE, stage, sharing, where) for sharing in (Sharing.TENSOR, Sharing.SEQUENCE)
    )
    assert parts.forward_s == tensor.forward_s
    more_s = 3 * all_reduce_s(degree, 16.0)  # 2 halves in each of 3 layers
    assert parts.backward_s == pytest.approx(tensor.backward_s + more_s)


@given(st.integers(2, 8))
def test_zero3_gathers_parameters_and_scatters_gradients(degree: int):
    where = cluster(8, latency_s=LATENCY_S, bytes_per_s=RATE)
    found = shared_part(WHOLE, stage_of(degree, recomputes=True), Sharing.ZERO3, where)
    ring_s = all_reduce_s(degree, 40.0)
    assert found.forward_s == pytest.approx(6 / degree + ring_s / 2)
    assert found.backward_s == pytest.approx(12 / degree + ring_s)


@given(st.integers(2, 8))
def test_data_parallelism_all_reduces_gradients_and_updates_everything(degree: int):
    where = cluster(8, latency_s=LATENCY_S, bytes_per_s=RATE)
    whole = replace(WHOLE, update_s=3.0)
    found = shared_part(whole, stage_of(degree, recomputes=True), Sharing.DATA, where)
    assert found.forward_s == pytest.approx(6 / degree)
    assert found.backward_s == pytest.approx(12 / degree + all_reduce_s(degree, 40.0))
    assert found.update_s == 3.0


@given(st.sampled_from([(2, 2), (2, 4), (4, 2)]), st.booleans())
def test_data_parts_exchange_fewer_activations_and_add_their_gradients(
    parts: tuple[int, int], recomputes: bool
):
    data, tensor = parts
    where = cluster(8, latency_s=LATENCY_S, bytes_per_s=RATE)
    stage = stage_of(data * tensor, recomputes=recomputes, data_parts=data)
    found = shared_part(WHOLE, stage, Sharing.TENSOR, where)
    each_s = all_reduce_s(tensor, 16.0 / data)
    assert found.forward_s == pytest.approx(6 / (data * tensor) + 6 * each_s)
    back_s = 6 * (1 + recomputes) * each_s + all_reduce_s(data, 40.0 / tensor)
    assert found.backward_s == pytest.approx(12 / (data * tensor) + back_s)
    assert found.update_s == pytest.approx(4 / tensor + all_reduce_s(tensor, 40.0) / 2)


@given(st.integers(2, 8))
def test_as_many_data_parts_as_devices_are_data_parallelism(degree: int):
    where = cluster(8, latency_s=LATENCY_S, bytes_per_s=RATE)
    parts = shared_part(WHOLE, stage_of(degree, data_parts=degree), Sharing.TENSOR, where)
    assert parts == shared_part(WHOLE, stage_of(degree), Sharing.DATA, where)


def test_one_device_has_nothing_to_exchange():
    where = cluster(2, latency_s=LATENCY_S, bytes_per_s=RATE)
    for sharing in Sharing:
        assert shared_part(WHOLE, stage_of(1), sharing, where) is WHOLE
