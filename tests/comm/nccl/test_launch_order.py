"""Both ends launch in one order, whatever the order of their calls, and nothing waits for ever."""

from collections import defaultdict, deque

from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.comm.nccl.launch_order import Incoming, Outgoing

CALLS = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=40)


@given(calls=CALLS, delays=st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_the_nth_message_of_a_tag_goes_where_it_was_posted_nth(
    calls: list[tuple[bool, int]], delays: list[int]
) -> None:
    outgoing: Outgoing[tuple[int, int]] = Outgoing()
    incoming: Incoming[tuple[int, int]] = Incoming()
    counts: defaultdict[tuple[bool, int], int] = defaultdict(int)
    notes: deque[tuple[int, int]] = deque()  # of what is posted, with a time to arrive
    launches: list[tuple[int, int]] = []
    for now, (is_send, tag) in enumerate(calls):
        number = counts[is_send, tag]
        counts[is_send, tag] += 1
        if is_send:
            launched = outgoing.offer(tag, (tag, number))
            launches += [launched] if launched else []
        else:
            incoming.post(tag, (tag, number))
            notes.append((now + delays[now], tag))
        while notes and notes[0][0] <= now:
            launched = outgoing.posted(notes.popleft()[1])
            launches += [launched] if launched else []
    for _, tag in notes:
        launched = outgoing.posted(tag)
        launches += [launched] if launched else []
    assert [incoming.launched(tag) for tag, _ in launches] == launches
    for tag in range(3):
        sent = sum(1 for launched, _ in launches if launched == tag)
        assert sent == min(counts[True, tag], counts[False, tag])
