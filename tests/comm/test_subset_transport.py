"""A transport between some ranks: their numbers, and groups that do not interfere."""

import numpy as np

from jaxpipe.comm import SubsetTransport, Transport, all_reduce, run_ranks


def test_groups_have_numbers_and_messages_of_their_own():
    groups = ((3, 0), (4, 1, 2))

    def work(transport: Transport) -> tuple[int, float]:
        (members,) = (group for group in groups if transport.rank in group)
        subset = SubsetTransport(transport, members=members)
        own = np.array([10.0**transport.rank])
        order = tuple(range(subset.num_ranks))
        return subset.rank, float(all_reduce(subset, own, order, tag=0, timeout_s=10.0)[0])

    assert run_ranks(5, work) == [
        (1, 1001.0),
        (1, 10110.0),
        (2, 10110.0),
        (0, 1001.0),
        (0, 10110.0),
    ]
