"""Fragments and their times: every parameter once, every fragment once in H inner steps."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import ConfigError
from jaxpipe.outer import (
    OuterAction,
    OuterConfig,
    OuterTimetable,
    check_fragments,
    fragment_of,
    fragments,
)


@st.composite
def timetables(draw: st.DrawFn) -> OuterTimetable:
    num_fragments = draw(st.integers(1, 5))
    interval = draw(st.integers(1, 5))
    every = num_fragments * interval
    return OuterTimetable(
        every=every,
        num_fragments=num_fragments,
        # That of eager updates is H.
        delay=draw(st.integers(0, interval - 1) | st.just(every)),
        num_steps=every * draw(st.integers(1, 4)),
    )


def of(table: OuterTimetable, action: OuterAction) -> list[tuple[int, int]]:
    """Return the inner steps and fragments of an action."""
    return [
        (done, fragment)
        for done in range(1, table.num_steps + 1)
        for each, fragment in table.events(done)
        if each is action
    ]


@given(timetables())
def test_each_fragment_is_sent_once_in_an_outer_step(table: OuterTimetable):
    for first in range(0, table.num_steps - table.every, table.every):
        window = range(first + 1, first + table.every + 1)
        sent = [fragment for done, fragment in of(table, OuterAction.SEND) if done in window]
        assert sent == list(range(table.num_fragments))


@given(timetables())
def test_fragments_have_times_of_their_own(table: OuterTimetable):
    before_the_end = [done for done, _ in of(table, OuterAction.SEND) if done < table.num_steps]
    assert len(set(before_the_end)) == len(before_the_end)


@given(timetables())
def test_what_is_sent_is_applied_once_and_in_order(table: OuterTimetable):
    in_flight: dict[int, int] = {}
    for done in range(1, table.num_steps + 1):
        for action, fragment in table.events(done):
            if action is OuterAction.SEND:
                assert fragment not in in_flight
                in_flight[fragment] = done
            else:
                sent = in_flight.pop(fragment)
                assert done - sent == table.delay or done == table.num_steps
        assert tuple(sorted(in_flight)) == table.in_flight(done)
        assert len(in_flight) <= (table.num_fragments if table.is_eager else 1)
    assert not in_flight


@given(timetables())
def test_the_last_step_sends_everything(table: OuterTimetable):
    sent = [fragment for done, fragment in of(table, OuterAction.SEND) if done == table.num_steps]
    assert sent == list(range(table.num_fragments))
    # Only the last fragment was due; a step with momentum after few inner steps moves too far.
    averaged = [fragment for _, fragment in of(table, OuterAction.AVERAGE)]
    assert averaged == list(range(table.num_fragments - 1))


@given(timetables(), st.integers(0, 30))
def test_islands_are_in_sync_right_after_a_whole_outer_step_alone(table: OuterTimetable, done: int):
    done = min(done, table.num_steps)
    whole = table.num_fragments == 1 and table.delay == 0 and done % table.every == 0
    assert table.is_in_sync(done) == (done in (0, table.num_steps) or whole)


@given(st.integers(1, 9), st.integers(0, 12), st.booleans())
def test_fragments_cover_every_tensor_once(num_fragments: int, num_layers: int, has_head: bool):
    names = [f"blocks.{layer}.{leaf}" for layer in range(num_layers) for leaf in ("up", "down")]
    names += ["embed.tokens", *(["head.scale"] if has_head else [])]
    found = fragments(names, num_fragments=num_fragments)
    assert len(found) == num_fragments
    assert sorted(name for each in found for name in each) == sorted(names)
    # A layer is in one fragment, wherever its stage begins.
    assert all(
        fragment_of(f"blocks.{layer}.up", num_fragments=num_fragments)
        == fragment_of(f"blocks.{layer}.down", num_fragments=num_fragments)
        for layer in range(num_layers)
    )


@given(st.integers(1, 9), st.integers(1, 12))
def test_no_fragment_of_a_whole_model_is_empty(num_fragments: int, num_layers: int):
    names = ["embed.tokens", *(f"blocks.{layer}.up" for layer in range(num_layers))]
    if num_fragments <= num_layers + 1:
        check_fragments(num_fragments, num_layers=num_layers)
        assert all(fragments(names, num_fragments=num_fragments))
    else:
        with pytest.raises(ConfigError, match=f"must be at most {num_layers + 1}"):
            check_fragments(num_fragments, num_layers=num_layers)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"islands": -1}, "`islands` must be at least 0, not -1"),
        ({"every": 10}, "`every` (10) needs islands, and `islands` is 0"),
        ({"islands": 2, "every": 0}, "`every` must be at least 1, not 0"),
        ({"islands": 2, "fragments": 0}, "`fragments` must be at least 1, not 0"),
        ({"islands": 2, "fragments": 4}, "`fragments` (4) must divide `every` (30)"),
        ({"islands": 2, "delay": 30}, "`delay` (30) must be below `every` / `fragments` (30)"),
        ({"islands": 2, "delay": -1}, "`delay` must be at least 0, not -1"),
        (
            {"islands": 2, "learning_rate": 0.0},
            "`learning_rate` must be above 0 and at most 1000, not 0.0",
        ),
        ({"islands": 2, "momentum": 1.0}, "`momentum` must be from 0 to below 1, not 1.0"),
        ({"islands": 2, "momentum": float("nan")}, "`momentum` must be from 0 to below 1, not nan"),
        ({"islands": 2, "local_fraction": -0.1}, "`local_fraction` must be from 0 to below 1"),
        ({"islands": 2, "top_k_fraction": 0.0}, "`top_k_fraction` must be above 0"),
    ],
)
def test_each_wrong_field_has_its_message(fields: dict, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        OuterConfig(**fields)
