"""Survivors get all of the state from each other, whoever held it and whoever needs it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.recovery.state_transfer import (
    Offer,
    TransferredState,
    moves,
    newest_whole_step,
    transfer_state,
)

NUM_TENSORS = 5
WHOLE = {
    f"mu.blocks.{i}.up": np.full((i, 2), i, np.float32 if i % 2 else np.int64)
    for i in range(NUM_TENSORS)
}


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds after how many steps, and needs; names are numbers of tensors."""

    step: int | None
    holds: frozenset[int]
    needs: frozenset[int]


def names(numbers: frozenset[int]) -> tuple[str, ...]:
    return tuple(list(WHOLE)[i] for i in sorted(numbers))


def offer_of(held: Held) -> Offer:
    layout = {name: (str(WHOLE[name].dtype), WHOLE[name].shape) for name in names(held.holds)}
    metadata = {"skipped_steps": held.step}
    return Offer(step=held.step, metadata=metadata, tensors=layout, needs=names(held.needs))


def tensors_of(held: Held) -> dict[str, np.ndarray]:
    """Return tensors that tell their step, so that those of another step are seen."""
    return {
        name: WHOLE[name] + np.array(held.step or 0, WHOLE[name].dtype)
        for name in names(held.holds)
    }


def handed_over(ranks: Sequence[Held]) -> list[TransferredState | None]:
    def work(transport: Transport) -> TransferredState | None:
        held = ranks[transport.rank]
        return transfer_state(transport, offer_of(held), tensors_of(held), timeout_s=10.0)

    return run_ranks(len(ranks), work)


some = st.frozensets(st.integers(0, NUM_TENSORS - 1))
ranks = st.lists(
    st.builds(Held, step=st.sampled_from([None, 6, 7]), holds=some, needs=some),
    min_size=1,
    max_size=4,
)


@given(ranks)
def test_each_rank_gets_what_it_needs_of_one_step_or_nobody_gets_anything(
    ranks: list[Held],
) -> None:
    wanted = frozenset[int]().union(*(each.needs for each in ranks))
    whole = [
        step
        for step in (6, 7)
        if any(each.step == step for each in ranks)
        and wanted <= frozenset().union(*(each.holds for each in ranks if each.step == step))
    ]
    results = handed_over(ranks)
    if not whole:
        assert results == [None] * len(ranks)
        return
    for held, result in zip(ranks, results, strict=True):
        assert result is not None
        assert result.step == max(whole)
        assert result.metadata == {"skipped_steps": max(whole)}
        needed = names(held.needs)
        got = result.read(needed)
        assert tuple(got) == needed
        for name, tensor in got.items():
            assert tensor.dtype == WHOLE[name].dtype
            np.testing.assert_array_equal(tensor, WHOLE[name] + max(whole))


@given(ranks)
def test_only_what_a_rank_lacks_moves_and_once(ranks: list[Held]) -> None:
    offers = [offer_of(each) for each in ranks]
    step = newest_whole_step(offers)
    if step is None:
        return
    found = moves(offers, step=step)
    assert len({(move.name, move.to) for move in found}) == len(found)
    for move in found:
        assert ranks[move.source].step == step
        assert move.name in offers[move.source].tensors
        assert move.name in offers[move.to].needs
        assert offers[move.to].step != step or move.name not in offers[move.to].tensors


def test_what_was_not_handed_over_is_named() -> None:
    handed = TransferredState(step=1, metadata={}, tensors={})
    with pytest.raises(CheckpointError, match=r"no rank has transferred head\.scale; resume from"):
        handed.read(["head.scale"])
