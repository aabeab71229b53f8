"""Plans whose replicas differ in their partitions and in their shares of the batch."""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, ranks
from jaxpipe.errors import PlanError
from jaxpipe.plan import (
    Plan,
    PlanConfig,
    check_plan,
    default_plan,
    draw_plan,
    ideal_bubble,
    parse_resolved_plan,
    plan_text,
    read_plan,
    write_plan,
)
from jaxpipe.schedule import Bucket, Op, ScheduleKind, check
from tests.plan_section import decided

NUM_LAYERS = 5
CLUSTER = topo.load("laptop")
KINDS = [kind for kind in ScheduleKind if kind is not ScheduleKind.INTERLEAVED]
"""Those that take any number of microbatches."""


def cuts() -> st.SearchStrategy[tuple[int, ...]]:
    """Return partitions of the layers, as the distances between chosen edges."""
    edges = st.sets(st.integers(1, NUM_LAYERS - 1)).map(lambda inner: sorted({*inner, NUM_LAYERS}))
    return edges.map(lambda ends: tuple(b - a for a, b in zip([0, *ends], ends, strict=False)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Return plans of up to three replicas, each with its own partition and share."""
    of_each = draw(st.lists(cuts(), min_size=1, max_size=3))
    shares = [2 * draw(st.integers(1, 3)) for _ in of_each]
    config = decided(
        cluster="laptop",
        cuts=tuple(of_each),
        shares=tuple(shares),
        microbatch=2,
        schedule=draw(st.sampled_from(KINDS)),
    )
    return default_plan(
        config, CLUSTER, num_layers=NUM_LAYERS, batch=sum(shares), tied=draw(st.booleans())
    )


def of_config(config: PlanConfig, batch: int) -> Plan:
    return default_plan(config, CLUSTER, num_layers=NUM_LAYERS, batch=batch, tied=True)


def one_of_each() -> Plan:
    return of_config(decided(cluster="laptop", cuts=((3, 2), (5,)), shares=(6, 2), microbatch=2), 8)


@given(plans())
def test_each_layer_is_reduced_over_the_ranks_that_hold_it(plan: Plan):
    check_plan(plan, num_devices=len(CLUSTER))
    ends = list(accumulate(plan.segments))
    assert ends[-1] == NUM_LAYERS
    for layer in range(NUM_LAYERS):
        held_by = {
            plan.rank(replica=replica, stage=stage)
            for replica, pipeline in enumerate(plan.pipelines)
            for stage in range(pipeline.num_stages)
            if layer in pipeline.layers(stage)
        }
        (segment,) = [n for n, end in enumerate(ends) if end - plan.segments[n] <= layer < end]
        assert set(ranks(plan.tree(Bucket.STAGE, segment=segment))) == held_by


@given(plans())
def test_each_sample_is_in_one_share(plan: Plan):
    rows = [row for replica in range(plan.num_replicas) for row in plan.rows(replica)]
    assert rows == list(range(plan.batch))
    firsts = [plan.first_microbatch(replica) for replica in range(plan.num_replicas)]
    counts = [pipeline.num_microbatches for pipeline in plan.pipelines]
    assert firsts == [0, *accumulate(counts)][:-1]


@given(plans())
def test_each_rank_reduces_the_segments_of_its_stages(plan: Plan):
    for rank in range(plan.num_ranks):
        replica = plan.replica(rank)
        assert plan.rank(replica=replica, stage=plan.stage(rank)) == rank == plan.device(rank)
        schedule = plan.train_schedule(replica=replica)
        check(schedule)
        program = schedule[plan.number(rank)]
        reduced = [i.segment for i in program if i.bucket is Bucket.STAGE]
        own = plan.segments_of(replica=replica, stage=plan.stage(rank))
        assert reduced == ([] if plan.num_replicas == 1 else list(reversed(own)))
        assert sum(plan.segment_layers(replica=replica, stage=plan.stage(rank))) == sum(
            plan.pipelines[replica].cut[stage] for stage in plan.stages(rank)
        )
        is_shared = any(i.bucket is Bucket.TIED for i in program)
        assert is_shared == (plan.shares_embedding and rank in ranks(plan.sync_shared))


@given(plans())
def test_a_file_gives_back_the_plan(tmp_path_factory: pytest.TempPathFactory, plan: Plan):
    path = tmp_path_factory.getbasetemp() / "unlike.toml"
    write_plan(plan, CLUSTER, path)
    assert read_plan(path, CLUSTER) == plan
    assert parse_resolved_plan(path.read_text(), source="text").plan == plan
    assert draw_plan(plan, CLUSTER).count("replica ") >= plan.num_replicas


def test_warm_ups_and_sizes_of_replicas_are_kept(tmp_path: Path):
    plan = one_of_each()
    first, second = plan.pipelines
    own = replace(
        plan,
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
        pipelines=(
            replace(first, warmup=(3, 1)),
            replace(second, microbatch=1, num_microbatches=2),
        ),
    )
    path = tmp_path / "plan.toml"
    write_plan(own, CLUSTER, path)
    assert read_plan(path, CLUSTER) == own
    assert own.batch == plan.batch


def test_the_bubble_of_all_replicas_weighs_their_ranks():
    plan = one_of_each()
    # Of 3 and 1 microbatches; the first replica takes 1 / (1 - 0.25) times its computes on 2 ranks.
    assert ideal_bubble(plan, replica=1) == 0.0
    first = ideal_bubble(plan, replica=0)
    assert ideal_bubble(plan) == pytest.approx(1 - 4 / (3 / (1 - first) + 1))
    alike = of_config(decided(cluster="laptop", cut=(3, 2), shares=(6, 6), microbatch=2), 12)
    assert ideal_bubble(alike) == ideal_bubble(alike, replica=1)


def test_a_drawing_shows_each_replica():
    golden = Path(__file__).parent / "golden" / "unlike_replicas.txt"
    assert f"{plan_text(one_of_each(), CLUSTER)}\n{draw_plan(one_of_each(), CLUSTER)}\n" == (
        golden.read_text()
    )


def test_what_is_one_for_all_replicas_is_refused_by_name():
    plan = one_of_each()
    assert not plan.is_even
    assert plan.microbatch == 2  # in this they are alike
    with pytest.raises(PlanError, match=r"replicas that differ .* `num_stages` .* is 2, 1; use a"):
        _ = plan.num_stages
    with pytest.raises(PlanError, match=r"the schedule of the plan's replicas is 3, 1"):
        plan.train_schedule()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (decided(cuts=((3, 2), (4,))), r"`plan.cuts` covers the layers: \[4\] adds up to 4"),
        (decided(cuts=((3, 2), ())), r"`plan.cuts` \[\] must have at least one layer"),
        (decided(cuts=((5,),), cut=(5,)), "`plan.cut` and `plan.cuts` are both set: .*remove"),
        (
            decided(cuts=((5,),) * 17),
            "stages of `plan.cuts` = 17 ranks need as many",
        ),
        (
            decided(cuts=((3, 2),), chunks=3),
            r"`plan.cuts` \(2\) must be a multiple of `plan.chunks` \(3\)",
        ),
        (decided(shares=(8,)), r"`plan.shares` is \[8\]: give a share to each of the 2 replicas"),
        (
            decided(shares=(5, 2)),
            r"is \[5, 2\], which adds up to 7: `train.batch` is 8",
        ),
        (decided(shares=(8, 0)), r"`plan.shares` is \[8, 0\]: replica 1 has 0 samples"),
        (
            decided(shares=(5, 3), microbatch=2),
            r"is \[5, 3\]: each share must be a multiple of `plan.microbatch`, 2",
        ),
    ],
)
def test_wrong_replicas_are_refused(config: PlanConfig, words: str):
    with pytest.raises(PlanError, match=words):
        default_plan(config, CLUSTER, num_layers=NUM_LAYERS, batch=8, tied=True)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_microbatches = 3", "num_microbatches = [3]", "is not a plan: Expected `int"),
        ("cut = [5]", "cut = [4]", r"`cut` .* same layers in every replica, \[5, 4\] of them"),
        ("cut = [5]", "", "`cut` is missing; state it at the top for all replicas, or in each"),
        ("    [1, 2],\n]", "    [0, 2],\n]", r"`sync` .* must name each rank once"),
        ("sync_shared = [0, 1, 2]", "sync_shared = [0, 1]", r"`sync_shared` \[0, 1, 2\]: they"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, old: str, new: str, words: str):
    text = plan_text(one_of_each(), CLUSTER)
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=words):
        read_plan(path, CLUSTER)


def test_a_custom_schedule_is_one_for_all_replicas():
    plan = one_of_each()
    own = replace(plan, schedule=plan.compute_schedule(replica=0))
    with pytest.raises(PlanError, match="a custom schedule is one for all replicas, which differ"):
        check_plan(own, num_devices=len(CLUSTER))


def test_an_all_reduce_of_a_library_takes_equal_partitions():
    config = decided(
        cluster="laptop", shares=(6, 2), microbatch=2, all_reduce=AllReduceKind.LIBRARY
    )
    plan = default_plan(config, CLUSTER, num_layers=NUM_LAYERS, batch=8, tied=True)
    check_plan(plan, num_devices=len(CLUSTER))


def test_interleaved_replicas_have_as_many_chunks():
    config = decided(
        cluster="laptop",
        cuts=((1, 2, 1, 1), (3, 2)),
        shares=(4, 3),
        chunks=2,
        schedule=ScheduleKind.INTERLEAVED,
    )
    plan = default_plan(config, CLUSTER, num_layers=NUM_LAYERS, batch=7, tied=True)
    check_plan(plan, num_devices=len(CLUSTER))
    assert [list(plan.stages(rank)) for rank in range(plan.num_ranks)] == [[0, 2], [1, 3], [0, 1]]
    for replica in range(2):
        schedule = plan.train_schedule(replica=replica)
        check(schedule)
        updates = [i.stage for program in schedule for i in program if i.op is Op.UPDATE]
        assert sorted(updates) == list(range(plan.pipelines[replica].num_stages))
