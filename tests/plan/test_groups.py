"""Plans whose ranks have several devices: files, checks, drawings and sizes."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.errors import PlanError
from jaxpipe.plan import (
    Pipeline,
    Plan,
    Sharing,
    check_plan,
    draw_plan,
    parse_resolved_plan,
    plan_text,
    read_plan,
    write_plan,
)
from jaxpipe.plan.cost import BytesPerParameter, live_limits, overfull, stage_memory
from tests.plan.models import profile_of
from tests.plan.test_unlike_replicas import CLUSTER, NUM_LAYERS, one_of_each, plans


@st.composite
def grouped_plans(draw: st.DrawFn) -> Plan:
    """Return plans of up to three replicas, whose ranks have from one device to three."""
    plan = draw(plans())
    sizes = [draw(st.integers(1, 3)) for _ in range(plan.num_ranks)]
    # In any order: which device of a host is which does not matter.
    devices = iter(draw(st.permutations(range(sum(sizes)))))
    groups = iter([tuple(next(devices) for _ in range(size)) for size in sizes])
    rows = [[next(groups) for _ in row] for row in plan.placement]
    plan = replace(plan.on_groups(rows), sharing=draw(st.sampled_from(Sharing)))
    if plan.sharing not in (Sharing.TENSOR, Sharing.SEQUENCE) or not draw(st.booleans()):
        return plan
    # Groups of two or three have one part, or as many as devices.
    return replace(
        plan,
        pipelines=tuple(
            replace(each, data_parts=tuple(draw(st.sampled_from((1, n))) for n in each.degrees))
            for each in plan.pipelines
        ),
    )


def grouped() -> Plan:
    """Return replicas of two stages on two devices and on one, and of one stage on three."""
    return one_of_each().on_groups((((0, 1), (2,)), ((3, 4, 5),)))


LARGE = topo.load("homogeneous:hosts=1,devices=64")


@given(grouped_plans())
def test_a_file_gives_back_the_plan(tmp_path_factory: pytest.TempPathFactory, plan: Plan):
    path = tmp_path_factory.getbasetemp() / "grouped.toml"
    write_plan(plan, LARGE, path)
    if plan.has_groups:
        assert read_plan(path, LARGE) == plan
        assert parse_resolved_plan(path.read_text(), source="text").plan == plan
    else:  # what does not matter is not written
        assert read_plan(path, LARGE) == replace(plan, sharing=Sharing.TENSOR)
    check_plan(plan, num_devices=64)


@given(grouped_plans())
def test_the_groups_are_all_devices_once(plan: Plan):
    devices = [device for rank in range(plan.num_ranks) for device in plan.group(rank)]
    assert sorted(devices) == list(range(len(devices)))
    assert [plan.device(rank) for rank in range(plan.num_ranks)] == [g[0] for g in plan.groups]
    alone = plan.on_devices(plan.placement)
    assert not alone.has_groups
    assert not alone.has_data_parts
    # Groups of the same sizes keep them.
    assert plan.on_groups([tuple(each.groups) for each in plan.pipelines]) == plan


def test_unlike_groups_make_unlike_replicas():
    row = Pipeline(devices=(0, 2), cut=(3, 2), num_microbatches=1, peers=((1,), ()))
    other = Pipeline(devices=(4, 6), cut=(3, 2), num_microbatches=1, peers=((5,), (7,)))
    assert row.degrees == (2, 1)
    assert row.shape != other.shape
    alone = replace(row, peers=((), ()))
    assert (alone.peers, alone.degrees) == ((), (1, 1))


def in_parts() -> Plan:
    """Return `grouped`, whose first rank has two data parts and whose last one three."""
    first, last = grouped().pipelines
    pipelines = (replace(first, data_parts=(2, 1)), replace(last, data_parts=(3,)))
    return replace(grouped(), pipelines=pipelines)


def test_data_parts_leave_the_rest_of_a_group_to_tensor_parallelism():
    four = grouped().on_groups((((0, 1, 2, 3), (4,)), ((5,),)))
    first, last = four.pipelines
    plan = replace(four, pipelines=(replace(first, data_parts=(2, 1)), last))
    assert plan.pipelines[0].tensor_parts == (2, 1)
    assert plan.pipelines[0].shape != first.shape
    assert replace(first, data_parts=(1, 1)) == first
    assert plan_text(plan, CLUSTER).count("data_parts = [2, 1]\n") == 1
    drawn = draw_plan(in_parts(), CLUSTER)
    assert "rank 0 divides each microbatch into 2 parts before that\nrank 2 " in drawn


@pytest.mark.parametrize(
    ("parts", "sharing", "words"),
    [
        (
            (2,),
            Sharing.TENSOR,
            r"`data_parts` \[2\] must divide .*, \[2, 1\]; give one for each",
        ),
        ((2, 2), Sharing.TENSOR, r"`data_parts` \[2, 2\] must divide .*, \[2, 1\]; give one"),
        ((0, 1), Sharing.TENSOR, r"`data_parts` \[0, 1\] must divide"),
        (
            (2, 1),
            Sharing.ZERO3,
            r"`data_parts` \[2, 1\] .* with `sharing` zero3.*; leave it out",
        ),
        ((2, 1), Sharing.DATA, "must be left out with `sharing` data"),
    ],
)
def test_wrong_data_parts_are_refused(parts: tuple[int, ...], sharing: Sharing, words: str):
    first, last = grouped().pipelines
    wrong = (replace(first, data_parts=parts), last)
    with pytest.raises(PlanError, match=words):
        check_plan(replace(grouped(), pipelines=wrong, sharing=sharing), num_devices=16)


def test_a_file_and_a_drawing_of_groups_read_well():
    text = plan_text(grouped(), CLUSTER)
    assert 'devices = [["here-0:0", "here-0:1"], "here-0:2"]\n' in text
    assert "placement = [[0, 1], 2]\n" in text
    assert "placement = [[3, 4, 5]]\n" in text
    drawn = draw_plan(grouped(), CLUSTER)
    assert "rank 0 on here-0:0 to here-0:1   rank 1 on here-0:2" in drawn
    assert "ranks have 1, 2, 3 devices, each with a part of every layer" in drawn
    zero3 = draw_plan(replace(grouped(), sharing=Sharing.ZERO3), CLUSTER)
    assert "a part of every parameter and of each microbatch (ZeRO-3)" in zero3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[[0, 1], 2]", "[[0, 0], 2]", r"\(0, 0\).* at most once"),
        ("[[0, 1], 2]", "[[0, 3], 2]", "at most once"),
        ("[[0, 1], 2]", "[[0, 16], 2]", "at most once"),
        ("[[0, 1], 2]", "[[], 2]", "`placement` has a rank without a device"),
        ("[[0, 1], 2]", "[[0, [1]], 2]", "is not a plan"),
        ('sharing = "tensor"', 'sharing = "samples"', "Invalid enum value 'samples'"),
        ('["here-0:0", "here-0:1"]', '["here-0:0", "here-0:9"]', "'here-0:0 here-0:9' in `dev"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, old: str, new: str, words: str):
    text = plan_text(grouped(), CLUSTER)
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PlanError, match=words):
        read_plan(path, CLUSTER)


def test_a_group_is_on_one_host(tmp_path: Path):
    cluster = topo.load("homogeneous:hosts=3,devices=2")
    path = tmp_path / "plan.toml"
    write_plan(grouped(), cluster, path)
    with pytest.raises(PlanError, match=r"\[3, 4, 5\] for rank 2, .* here-1, here-2 .* one host"):
        read_plan(path, cluster)


def test_peers_are_those_of_every_rank():
    plan = grouped()
    wrong = replace(plan.pipelines[0], peers=((1,),))
    with pytest.raises(PlanError, match="`peers` has 1 rows for 2 ranks; give one for each"):
        check_plan(replace(plan, pipelines=(wrong, plan.pipelines[1])), num_devices=16)


@pytest.mark.parametrize("sharing", Sharing)
def test_devices_of_a_group_divide_its_memory(sharing: Sharing):
    each, profile = BytesPerParameter(), profile_of(NUM_LAYERS)
    plan = replace(grouped(), sharing=sharing)
    alone = plan.on_devices(plan.placement)
    for replica, degrees in enumerate(((2, 1), (3,))):
        found = stage_memory(plan, profile, each=each, replica=replica)
        whole = stage_memory(alone, profile, each=each, replica=replica)
        for own, of_rank, degree in zip(found, whole, degrees, strict=True):
            parts = 1 if sharing is Sharing.DATA else degree
            assert own.parameters == 4 * -(-(of_rank.parameters // 4) // parts)
            assert own.optimizer == 2 * own.parameters
            if sharing is Sharing.TENSOR or degree == 1:
                assert own.activations == of_rank.activations
            else:
                assert own.activations < of_rank.activations


def test_data_parts_divide_residuals_and_keep_parameters():
    each, profile = BytesPerParameter(), profile_of(NUM_LAYERS)
    for number in (0, 1):
        by_data = stage_memory(
            replace(grouped(), sharing=Sharing.DATA), profile, each=each, replica=number
        )
        assert stage_memory(in_parts(), profile, each=each, replica=number) == by_data


def test_all_devices_of_a_group_have_to_hold_their_part():
    each, profile, plan = BytesPerParameter(), profile_of(NUM_LAYERS), grouped()
    need = stage_memory(plan, profile, each=each, replica=1)[0].total
    small = replace(CLUSTER.devices[4], memory_bytes=need - 1)
    cluster = replace(CLUSTER, devices=(*CLUSTER.devices[:4], small, *CLUSTER.devices[5:]))
    assert overfull(plan, profile, cluster, each=each) == {4: 1}
    even = replace(plan, pipelines=(plan.pipelines[1],))
    assert live_limits(even, profile, cluster, each=each) == (0,)
