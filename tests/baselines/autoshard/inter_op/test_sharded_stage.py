"""Costs of stages that are sharded inside their submesh, against closed forms."""

from dataclasses import replace
from typing import Any

import pytest

from jaxpipe.baselines.autoshard.inter_op import (
    BytesEach,
    Hosts,
    ModelWork,
    PartWork,
    ShardedCosts,
    SubmeshSpace,
    assign_stages,
)

NOTHING = PartWork(seconds=0.0, parameters=0.0)
HOSTS = Hosts(
    devices=4,
    ring_bytes_per_s=lambda _: 10.0,
    link_bytes_per_s=2.0,
    memory_bytes=1e9,
    memory_bytes_per_s=100.0,
)


def works(op: int, samples: int) -> ModelWork:
    """A layer of 8 parameters takes a second for a sample; op halves it and adds collectives."""
    layer = PartWork(
        seconds=samples / op + 0.3 * (op > 1) * samples,
        parameters=8 / op,
        kept_bytes=samples,
        working_bytes=5.0,
    )
    return ModelWork(layer=layer, embed=replace(NOTHING, seconds=0.5), head=NOTHING)


def costs(**changes: Any) -> ShardedCosts:
    given = {
        "works": works,
        "hosts": HOSTS,
        "per_parameter": BytesEach(stored=18, gradient=2, update=28),
        "num_layers": 6,
        "microbatch": 4,
        "num_microbatches": 8,
        **changes,
    }
    return ShardedCosts(**given)


def test_one_device_computes_its_layers_and_updates_once() -> None:
    found = costs()(range(3), range(1))
    assert found is not None
    # 3 layers of 4 samples, the embedding, and 28 bytes for each of 24 parameters in 8 parts.
    assert found.seconds == pytest.approx(3 * 4 + 0.5 + 24 * 28 / 100 / 8)
    assert found.held_bytes == 24 * 18 + 5
    assert found.live_bytes == 3 * 4


def test_samples_are_divided_where_gradients_cost_less() -> None:
    found = costs()
    assert found.shape(range(1, 3), range(4)) == (4, 1)
    summed_s = 2 * 3 / 4 * 16 * 2 / 10
    expected = 2 * 1 + (16 * 28 / 100 + summed_s) / 8
    assert found(range(1, 3), range(4)).seconds == pytest.approx(expected)  # type: ignore[union-attr]


def test_few_samples_are_not_divided_further() -> None:
    assert costs(microbatch=2).shape(range(1, 3), range(4)) == (2, 2)


def test_what_does_not_fit_is_split_by_operators() -> None:
    held = 18 * 16 + 5 + 2 * 1
    small = replace(HOSTS, memory_bytes=held - 1)
    assert costs(hosts=small).shape(range(1, 3), range(4))[1] > 1


def test_operators_stay_on_a_host() -> None:
    wide = costs(microbatch=1)
    assert wide(range(2), range(8)) is None  # 8 = 2 x 4 would divide one sample
    assert costs(microbatch=2).shape(range(2), range(8)) == (2, 4)


def test_rings_of_a_host_share_its_card() -> None:
    one = costs(microbatch=2, num_microbatches=1)
    found = one(range(2), range(8))
    parameters = 2 * 8 / 4
    once_s = parameters * 28 / 100 + 2 * 1 / 2 * parameters * 2 / (2.0 / 4)
    layers_s = 2 * (1 / 4 + 0.3)
    assert found is not None
    assert found.seconds == pytest.approx(layers_s + 0.5 + once_s)


def test_a_pipeline_is_found_where_one_stage_does_not_fit() -> None:
    room = 18 * 8 * 3 + 5 + 6 * 4
    tight = costs(hosts=replace(HOSTS, memory_bytes=room, devices=1))
    space = SubmeshSpace(
        submeshes=(range(1), range(1, 2), range(2)),
        memory_bytes=[room] * 2,
        hop_s=lambda _: 0.1,
    )
    found = assign_stages(tight, space, num_layers=6, num_microbatches=8)
    assert found.cut == (3, 3)
