"""The bytes of an all-reduce, known before it begins, are those that ranks send."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.collective.codec.bfloat16 import Bfloat16Codec
from jaxpipe.collective.sync_tree import SyncTree, ranks
from jaxpipe.comm import (
    CountingTransport,
    Transport,
    WireFormat,
    all_reduce,
    all_reduce_bytes,
    run_ranks,
)
from tests.collective.strategies import sync_trees

_TAG = 5


@pytest.mark.parametrize("kind", [kind for kind in AllReduceKind if not kind.facts.is_native])
@settings(deadline=None, max_examples=20)
@given(
    tree=sync_trees(),
    size=st.integers(0, 40),
    chunk_bytes=st.sampled_from([1, 12, 2**20]),
    is_coded=st.booleans(),
)
def test_bytes_are_those_that_ranks_send(
    kind: AllReduceKind, tree: SyncTree, size: int, chunk_bytes: int, *, is_coded: bool
) -> None:
    far = Bfloat16Codec() if is_coded and kind.facts.has_far_messages else None
    wire = WireFormat(far=far, chunk_bytes=chunk_bytes)

    def work(transport: Transport) -> int:
        counted = CountingTransport(transport)
        array = np.ones(size, np.float32)
        all_reduce(counted, array, tree, tag=_TAG, timeout_s=10.0, algorithm=kind, wire=wire)
        return counted.num_bytes_sent

    like, members = jax.ShapeDtypeStruct((size,), np.float32), ranks(tree)
    sent = run_ranks(len(members), work)
    for rank, num_bytes in enumerate(sent):
        assert all_reduce_bytes(rank, like, tree, algorithm=kind, wire=wire) == num_bytes, rank
