"""Layouts as plans."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.errors import PlanError
from jaxpipe.plan import check_hosts, check_plan, default_plan
from jaxpipe.search.layout import Group, Layout, Run, plan_of_layout
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import gpu
from tests.plan_section import decided

FAST, SLOW = "A100-40GB", "V100-SXM2"


def mixed() -> Cluster:
    """Return two regions of two hosts, with fast devices in one and slow ones in the other."""
    cluster = topo.load("two-region")
    kinds = {"ohio": gpu(FAST), "virginia": gpu(SLOW)}
    devices = tuple(replace(each, gpu=kinds[each.region]) for each in cluster.devices)
    return replace(cluster, devices=devices)


def group(kind: str, zone: str, *, tensor: int = 1) -> Group:
    return Group(kind, zone, tensor)


def test_replicas_have_the_devices_of_their_groups():
    ohio, virginia = group(FAST, "ohio"), group(SLOW, "virginia")
    layout = Layout(cut=(4, 3), stages=((Run(ohio, 2),), (Run(virginia, 2),)), microbatch=2)
    plan = plan_of_layout(layout, mixed(), num_layers=7, batch=10)
    check_plan(plan, num_devices=4)
    assert plan.placement == ((0, 2), (1, 3))
    # Five microbatches: the first replica has one more.
    assert [each.num_microbatches for each in plan.pipelines] == [3, 2]
    assert plan.batch == 10
    with_ends = plan_of_layout(layout, mixed(), num_layers=5, batch=8)
    assert with_ends.cut == (3, 2)
    assert with_ends.is_even


def test_a_group_has_devices_of_one_host():
    cluster = topo.load("homogeneous:hosts=3,devices=3")
    pair, one = group(SLOW, "here", tensor=2), group(SLOW, "here")
    stages = ((Run(pair, 1), Run(pair, 1)), (Run(pair, 1), Run(one, 1)))
    layout = Layout(cut=(3, 2), stages=stages, microbatch=1)
    plan = plan_of_layout(layout, cluster, num_layers=5, batch=8)
    # The third device of a host is of use alone.
    assert plan.groups == ((0, 1), (3, 4), (6, 7), (2,))
    check_hosts(plan.groups, cluster)
    assert [pipeline.degrees for pipeline in plan.pipelines] == [(2, 2), (2, 1)]


def test_a_layout_of_equal_devices_is_the_default_plan():
    ohio, virginia = group(FAST, "ohio"), group(SLOW, "virginia")
    stages = (Run(ohio, 1), Run(virginia, 1))
    layout = Layout(cut=(3, 2), stages=(stages, stages), microbatch=1)
    config = decided(cluster="two-region", cut=(3, 2))
    expected = default_plan(config, mixed(), num_layers=5, batch=8, tied=True)
    assert plan_of_layout(layout, mixed(), num_layers=5, batch=8, tied=True) == expected


@pytest.mark.parametrize(
    ("stages", "batch", "num_layers", "words"),
    [
        (((group(FAST, "ohio", tensor=2), 1),), 8, 5, "'ohio' for groups of 2; use fewer replicas"),
        (((group(FAST, "ohio"), 3),), 9, 5, "too few with `gpu` 'A100-40GB' in region 'ohio'"),
        (((group(SLOW, "ohio"), 1),), 8, 5, "too few with `gpu` 'V100-SXM2' in region 'ohio'"),
        (((group(FAST, "ohio"), 2),), 1, 5, "`batch` is 1 for 2 replicas"),
        (((group(FAST, "ohio"), 2),), 8, 6, r"`cut` is \(5,\), for 6 layers, or 8 with"),
    ],
)
def test_layouts_that_a_plan_cannot_say_are_refused(
    stages: tuple[tuple[Group, int], ...], batch: int, num_layers: int, words: str
):
    layout = Layout(cut=(5,), stages=(tuple(Run(*run) for run in stages),), microbatch=1)
    with pytest.raises(PlanError, match=words):
        plan_of_layout(layout, mixed(), num_layers=num_layers, batch=batch)


def test_stages_of_unequal_numbers_are_refused():
    ohio = group(FAST, "ohio")
    layout = Layout(cut=(3, 2), stages=((Run(ohio, 1),), (Run(ohio, 2),)), microbatch=1)
    with pytest.raises(PlanError, match=r"have \[1, 2\] replicas; make them equal"):
        plan_of_layout(layout, mixed(), num_layers=5, batch=8)
