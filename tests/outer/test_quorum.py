"""When a round of a merge server ends, what a delivery weighs, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.outer import OuterOptimizer, QuorumConfig, fresh_state, outer_step
from jaxpipe.outer.merge_log import Merge
from jaxpipe.outer.quorum import Delivery, Merger, digest_of, fresh_merger

ANCHOR = {"a": np.array([1, 2, 3], np.float32), "b.c": np.array([[4, -5]], np.float32)}
GRACE_S = 5.0


def merger_of(there: Sequence[int], **changes: object) -> Merger:
    config = QuorumConfig(**{"server": "x", "islands": 8, "grace_s": GRACE_S, **changes})
    merger = fresh_merger(config, ANCHOR)
    for island in there:
        merger.join(island)
    return merger


def delivery(
    island: int, *, base: int = 0, steps: int = 1, tokens: float = 1.0, value: float = 1.0
) -> Delivery:
    gradients = {name: np.full_like(tensor, value) for name, tensor in ANCHOR.items()}
    return Delivery(
        island=island,
        base=base,
        step=base + steps,
        steps=steps,
        tokens=tokens,
        gradients=gradients,
        digest=digest_of(gradients),
    )


@given(
    tokens=st.dictionaries(st.integers(0, 7), st.floats(1, 1e6), min_size=1, max_size=8),
    lot=st.randoms(use_true_random=False),
)
def test_a_merge_of_all_is_the_outer_step_of_their_mean_in_any_order(
    tokens: dict[int, float], lot: object
) -> None:
    results: list[Merge] = []
    mergers = [merger_of(list(tokens)) for _ in range(2)]
    for merger in mergers:
        islands = list(tokens)
        lot.shuffle(islands)  # pyright: ignore[reportAttributeAccessIssue]
        for island in islands:
            merger.deliver(delivery(island, tokens=tokens[island], value=float(island)))
        assert merger.is_due(now_s=0.0)
        results.append(merger.merge())
    assert results[0] == results[1]
    mean = sum(island * share for island, share in tokens.items()) / sum(tokens.values())
    optimizer = OuterOptimizer(learning_rate=0.7, momentum=0.9)
    for name, tensor in ANCHOR.items():
        total = np.full_like(tensor, np.float32(mean))
        expected = outer_step(fresh_state(tensor), total, optimizer).anchor
        np.testing.assert_allclose(mergers[0].states[name].anchor, expected, rtol=1e-5)


@settings(max_examples=300)
@given(
    events=st.lists(
        st.tuples(st.sampled_from(["deliver", "join", "leave", "wait"]), st.integers(0, 4)),
        max_size=30,
    ),
    least=st.integers(1, 5),
)
def test_a_round_ends_with_all_or_with_a_quorum_and_its_grace_time(
    events: list[tuple[str, int]], least: int
) -> None:
    merger, now_s = merger_of(range(5), least=least), 0.0
    quorum_since: float | None = None
    for kind, island in events:
        if kind == "join":
            merger.join(island)
        elif kind == "leave":
            merger.leave(island)
        elif kind == "wait":
            now_s += island
        elif island in merger.there and island not in merger.deliveries:
            merger.deliver(delivery(island, base=merger.version))
        came = set(merger.deliveries)
        has_quorum = len(came) >= min(least, len(merger.there | came)) and bool(came)
        if has_quorum and quorum_since is None:
            quorum_since = now_s
        asked = set(merger.asked())
        assert asked == (merger.there - came if has_quorum else set())
        is_due = merger.is_due(now_s=now_s)
        if merger.there <= came and came:
            assert is_due
        if is_due:
            assert came
            assert merger.there <= came or has_quorum
            number = merger.version
            assert {part.island for part in merger.merge().islands} == came
            assert merger.version == number + 1
            quorum_since = None
        elif has_quorum and quorum_since is not None:
            assert now_s - quorum_since <= GRACE_S


def test_a_stale_delivery_is_discounted_and_left_out_with_a_discount_of_0() -> None:
    for discount, weight in ((0.5, 0.25), (0.0, 0.0), (1.0, 0.5)):
        merger = merger_of([0, 1], least=1, discount=discount)
        merger.deliver(delivery(0))
        assert not merger.is_due(now_s=0.0)
        assert merger.is_due(now_s=GRACE_S)
        merger.merge()
        merger.deliver(delivery(0, base=1))
        merger.deliver(delivery(1, base=0))
        fresh, stale = merger.merge().islands
        assert (fresh.weight, stale.weight) == (0.5, weight)


def test_what_is_not_finite_weighs_nothing() -> None:
    merger = merger_of([0, 1])
    merger.deliver(delivery(0, value=float("nan")))
    merger.deliver(delivery(1, value=2.0))
    alone = merger_of([1])
    alone.deliver(delivery(1, value=2.0))
    assert [part.weight for part in merger.merge().islands] == [0.0, 1.0]
    alone.merge()
    assert merger.digest() == alone.digest()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (delivery(0, base=3), "`base` is 3"),
        (delivery(0, base=-1), "`base` is -1"),
        (delivery(0, tokens=float("inf")), "`steps` and `tokens`"),
        (delivery(0, steps=-1), "`steps` and `tokens`"),
        (
            replace(delivery(0), gradients={"a": ANCHOR["a"]}),
            "of another model: b.c",
        ),
    ],
)
def test_a_wrong_delivery_is_refused(wrong: Delivery, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merger_of([0]).deliver(wrong)


def test_what_is_sent_again_counts_once() -> None:
    merger = merger_of([0, 1])
    assert merger.deliver(delivery(0, value=1.0))
    assert merger.deliver(delivery(0, value=3.0))  # after it has come back
    assert merger.deliver(delivery(1, value=3.0))
    merger.merge()
    assert not merger.deliver(delivery(0, value=3.0))
    assert not merger.deliveries
    once = merger_of([0])
    once.deliver(delivery(0, value=3.0))
    once.merge()
    assert merger.digest() == once.digest()
    assert merger.deliver(delivery(0, base=1))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"islands": 2, "island": 2}, "`island` .2. must be below `islands`"),
        ({"islands": 2, "least": 3}, "`least` .3. must be at most"),
        ({"codec": "top_k"}, "`codec` is top_k"),
        ({"grace_s": -1.0}, "`grace_s`"),
    ],
)
def test_a_wrong_section_is_refused(fields: dict[str, object], words: str) -> None:
    from jaxpipe.collective import CodecKind

    if "codec" in fields:
        fields = {"codec": CodecKind(fields["codec"])}
    with pytest.raises(ValueError, match=words):
        QuorumConfig(**fields)  # pyright: ignore[reportArgumentType]


def test_the_first_round_waits_for_a_quorum_to_come() -> None:
    merger = merger_of([0], least=2)
    merger.deliver(delivery(0))
    assert not merger.is_due(now_s=100.0)
    merger.join(1)
    assert set(merger.asked()) == set()
    merger.leave(1)
    assert merger.is_due(now_s=100.0)
