"""Shards of a segment meet those of its other holders, whichever stages these have."""

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.comm import Transport, run_ranks
from jaxpipe.plan import Plan, default_plan
from jaxpipe.runtime.step.parameter_gather import ParameterGather, optimizer_shards_of
from jaxpipe.schedule import ScheduleKind
from tests.plan_section import decided

NUM_GROUPS = 2
"""As many vectors of each segment as moments."""


def unlike(cuts: tuple[tuple[int, ...], ...], *, chunks: int = 1) -> Plan:
    config = decided(
        cluster="laptop",
        cuts=cuts,
        shares=(4,) * len(cuts),
        chunks=chunks,
        schedule=ScheduleKind.ONE_F_ONE_B if chunks == 1 else ScheduleKind.INTERLEAVED,
        microbatch=1,
    )
    num_layers, batch = sum(cuts[0]), 4 * len(cuts)
    return default_plan(config, topo.load("laptop"), num_layers=num_layers, batch=batch, tied=False)


def whole(segment: int, group: int) -> np.ndarray:
    """Return the vector of a segment; that of segment 1 is empty, as where all is frozen."""
    return np.arange(7.0 * segment if segment != 1 else 0.0) + 100 * group


# In the second, a rank of replica 1 has three segments that two ranks of replica 0 hold in turn.
@pytest.mark.parametrize(
    "plan", [unlike(((3,), (1, 2), (2, 1))), unlike(((1, 1, 1, 1), (1, 3)), chunks=2)]
)
def test_all_holders_have_the_whole_vectors(plan: Plan):
    def work(transport: Transport) -> None:
        gather = ParameterGather(plan=plan, transport=transport, timeout_s=20.0, chunk_bytes=16)
        rank = transport.rank
        for stage in plan.stages(rank):
            segments = plan.segments_of(replica=plan.replica(rank), stage=stage)
            expected = [[whole(s, group) for s in segments] for group in range(NUM_GROUPS)]
            shards = optimizer_shards_of(plan, rank=rank, stage=stage)
            own = [
                [vector[slice(*shard.part(size=vector.size))] for vector, shard in pairs]
                for pairs in (zip(vectors, shards, strict=True) for vectors in expected)
            ]
            sizes = [vector.size for vector in expected[0]]
            found = gather.all_gather(own, stage=stage, sizes=sizes)
            for vectors, right in zip(found, expected, strict=True):
                for vector, each in zip(vectors, right, strict=True):
                    np.testing.assert_array_equal(vector, each)

    run_ranks(plan.num_ranks, work)


def test_one_replica_has_no_shards():
    plan = unlike(((2, 1),))
    assert optimizer_shards_of(plan, rank=1, stage=1) == ()
