"""A plan as text says who holds what, over which links, in what order."""

import pytest

from jaxpipe.plan import default_plan, draw_plan, ideal_bubble
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo import load
from tests.plan_section import decided

EXPECTED = """\
4 ranks, 2 stages x 2 replicas, on cluster two-region

           stage 0: layers 0-1      stage 1: layer 2
replica 0  rank 0 on ohio-0:0       rank 1 on ohio-1:0
replica 1  rank 2 on virginia-0:0   rank 3 on virginia-1:0

activations cross links of up to 1 ms and down to 5 Gbps
gradients cross links of up to 11 ms and down to 1.12 Gbps
all-reduce of gradients: tree, for stage 0 over ranks (0 2)
  the tied embedding over ranks ((0 1) (2 3))

schedule gpipe, 2 microbatches: theoretical bubble 40.0% (backward = 2 forwards, equal layers, no \
network), at most 2, 2 microbatches live

stage 0  0  1  .  . [0][1]
stage 1  .  0  1 [0][1] ."""


def test_a_plan_is_drawn():
    config = decided(schedule=ScheduleKind.GPIPE)
    cluster = load("two-region")
    plan = default_plan(config, cluster, num_layers=3, batch=4, tied=True)
    assert draw_plan(plan, cluster) == EXPECTED


def test_a_tied_embedding_is_summed_by_one_replica_too():
    config = decided(stages=2, replicas=1)
    cluster = load("two-region")
    tied, untied = (
        draw_plan(default_plan(config, cluster, num_layers=3, batch=4, tied=tied), cluster)
        for tied in (True, False)
    )
    assert "\nall-reduce of gradients: tree, of the tied embedding over ranks (0 1)\n" in tied
    assert "\nall-reduce of gradients: none, for there is one replica\n" in untied


EXPECTED_CHUNKS = """\
4 ranks, 4 stages x 2 replicas, on cluster two-region, 2 chunks per rank

           stage 0: layers 0-1      stage 1: layer 2
           stage 2: layer 3         stage 3: layer 4
replica 0  rank 0 on ohio-0:0       rank 1 on ohio-1:0
replica 1  rank 2 on virginia-0:0   rank 3 on virginia-1:0
"""


def test_chunks_are_drawn_with_the_rank_that_holds_them():
    config = decided(stages=4, chunks=2, schedule=ScheduleKind.INTERLEAVED)
    cluster = load("two-region")
    plan = default_plan(config, cluster, num_layers=5, batch=4, tied=True)
    assert draw_plan(plan, cluster).startswith(EXPECTED_CHUNKS)
    assert "at most 4, 3 microbatches live" in draw_plan(plan, cluster)


@pytest.mark.parametrize(
    "kind", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER_ONE_F_ONE_B]
)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (2, 1), (4, 6)])
def test_the_ideal_bubble_of_even_stages_has_its_closed_form(
    kind: ScheduleKind, stages: int, microbatches: int
):
    config = decided(cluster="laptop", stages=stages, replicas=1, schedule=kind)
    plan = default_plan(config, load("laptop"), num_layers=4, batch=microbatches, tied=True)
    expected = (stages - 1) / (microbatches + stages - 1)
    assert ideal_bubble(plan) == pytest.approx(expected)
