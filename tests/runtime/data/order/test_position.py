"""A run that stops and resumes with other batches reads each sample of an epoch once."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.data.order.batches import draw
from jaxpipe.runtime.data.order.position import (
    ORDER,
    SAMPLES,
    Position,
    changes_of_order,
    order_of,
    position_after,
)

FIELDS: dict[str, Any] = {
    "seed": 1,
    "sequence": 16,
    "pack": False,
    "checksums": ["a", "b"],
    "weights": [1.0, 3.0],
}
ATTEMPTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=6)


def saved(order: dict[str, Any], *, samples: int) -> dict[str, Any]:
    """Return metadata as a checkpoint has them."""
    return json.loads(json.dumps({ORDER: order, SAMPLES: samples}))


@given(ATTEMPTS, st.integers(0, 2**32 - 1))
def test_samples_are_read_once_whatever_the_batches(
    attempts: list[tuple[int, int]], seed: int
) -> None:
    order, position, step = order_of(**FIELDS), Position(), 0
    numbers: list[int] = []
    for steps, batch in attempts:
        for ahead in range(steps):
            first = position.first_sample(step + ahead, batch=batch)
            numbers += range(first, first + batch)
        step += steps
        samples = position.first_sample(step, batch=batch)
        position = position_after(saved(order, samples=samples), step=step, order=order)
    assert numbers == list(range(len(numbers)))
    epoch = draw(len(numbers), np.array(numbers), seed=seed)[0]
    assert sorted(epoch.tolist()) == numbers


@given(
    st.sampled_from(sorted(FIELDS)),
    st.integers(2, 99),
    st.floats(0.01, 100).filter(lambda factor: factor != 1),
)
def test_what_decides_the_order_is_compared_and_begins_it_again(
    name: str, number: int, factor: float
) -> None:
    other = {
        "seed": number,
        "sequence": 16 + number,
        "pack": True,
        "checksums": ["a", f"b{number}"],
        "weights": [factor, 3.0],
    }[name]
    old, new = order_of(**FIELDS), order_of(**{**FIELDS, name: other})
    metadata = saved(old, samples=40)
    field = {"seed": "run.seed", "sequence": "train.sequence", "pack": "data.pack"}
    expected = field.get(name, "data.sources")
    assert list(changes_of_order(metadata, new)) == [expected]
    assert position_after(metadata, step=5, order=new) == Position(step=5)
    assert not changes_of_order(metadata, old)


@given(st.integers(1, 99))
def test_weights_are_shares(factor: int) -> None:
    weights = [factor * weight for weight in FIELDS["weights"]]
    assert order_of(**{**FIELDS, "weights": weights}) == order_of(**FIELDS)


def test_a_checkpoint_of_an_older_version_is_as_far_as_its_configuration() -> None:
    tree = {"run": {"seed": 1}, "train": {"batch": 4}, "model": {"sequence": 16}}
    order = order_of(**FIELDS)
    assert position_after({"config": tree}, step=3, order=order) == Position(step=3, sample=12)
    for none in ({}, {ORDER: "run.seed"}, {ORDER: []}):
        changed = changes_of_order({"config": tree, **none}, {**order, "run.seed": 2})
        assert changed == {"run.seed": (1, 2)}


@pytest.mark.parametrize("number", [-1, "5", 1.5, None, 2**62])
def test_a_number_of_samples_that_is_none_is_refused(number: object) -> None:
    with pytest.raises(CheckpointError, match="`samples` of the checkpoint of step 3"):
        position_after({SAMPLES: number}, step=3, order={})
