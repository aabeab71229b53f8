"""Bytes over slow links: of messages, and of collectives as rings send them."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.hlo import HloCollective, HloKind
from jaxpipe.baselines.autoshard.strategy import MeshShape
from jaxpipe.baselines.compare.slow_link_bytes import is_slow, sent_in_messages, sent_in_rings
from jaxpipe.comm import CountingTransport, Transport, run_ranks

KINDS = (HloKind.ALL_REDUCE, HloKind.ALL_GATHER, HloKind.REDUCE_SCATTER)
FAR = ("ohio", "ohio", "virginia")


def collective(kind: HloKind, *, group: int, num_bytes: int) -> HloCollective:
    return HloCollective(kind=kind, num_bytes=num_bytes, group=group, dtypes=("f32",))


@given(
    dp=st.integers(1, 4), op=st.integers(1, 4), kind=st.sampled_from(KINDS), n=st.integers(0, 999)
)
def test_rings_send_all_but_one_part(dp: int, op: int, kind: HloKind, n: int):
    mesh = MeshShape(dp=dp, op=op)
    size = mesh.num_devices
    found = [collective(kind, group=0, num_bytes=n)]
    sent = [sent_in_rings(found, mesh, ("here",) * size, rank=rank)[0] for rank in range(size)]
    times = 2 if kind is HloKind.ALL_REDUCE else 1
    assert sum(sent) == pytest.approx(times * (size - 1) * n)


def test_only_hops_between_regions_are_slow():
    found = [collective(HloKind.ALL_GATHER, group=0, num_bytes=300)]
    mesh = MeshShape(dp=3, op=1)
    slow = [sent_in_rings(found, mesh, FAR, rank=rank)[1] for rank in range(3)]
    assert slow == [0.0, 200.0, 200.0]


@pytest.mark.parametrize(("group", "expected"), [(2, 0.0), (3, 2.0), (1, 0.0)])
def test_groups_lie_along_an_axis(group: int, expected: float):
    regions = ("a", "a", "b", "b", "c", "c")  # two devices to a region along op, three along dp
    found = [collective(HloKind.ALL_GATHER, group=group, num_bytes=3)]
    assert sent_in_rings(found, MeshShape(dp=3, op=2), regions, rank=1)[1] == expected


def test_messages_to_other_regions_are_counted():
    def work(transport: Transport) -> tuple[int, int]:
        counted = CountingTransport(transport)
        to = (counted.rank + 1) % 3
        sending = counted.send(np.zeros(2, np.float32), to=to, tag=0)
        like = jax.ShapeDtypeStruct((2,), np.float32)
        counted.receive(like, source=(counted.rank - 1) % 3, tag=0).wait(timeout_s=5.0)
        sending.wait(timeout_s=5.0)
        return sent_in_messages(counted.num_bytes_to(), FAR, rank=counted.rank)

    assert run_ranks(3, work) == [(8, 0), (8, 8), (8, 8)]


def test_a_rank_has_no_link_to_itself():
    assert not is_slow(("ohio",), 0, 0)
