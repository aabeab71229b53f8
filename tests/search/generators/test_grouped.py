"""Search with tensor parallelism, on a smaller cluster of groups."""

from dataclasses import replace

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.plan import check_hosts, check_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task, build
from jaxpipe.search.generators.grouped import GroupedTask, degrees
from jaxpipe.topo import Precision
from tests.plan.models import profile_of


def task_on(name: str, **changes: object) -> Task:
    cluster = topo.load(name)
    devices = tuple(
        replace(each, effective_flops_per_s=1e12, memory_bytes=2**20) for each in cluster.devices
    )
    cluster = replace(cluster, devices=devices)
    task = Task(cluster=cluster, profile=profile_of(4), batch=8, precision=Precision.FP32)
    return replace(task, **changes)  # pyright: ignore[reportArgumentType]


def test_the_devices_of_a_smaller_task_are_groups_of_a_host():
    task = task_on("case2-spot")  # 8 hosts of 4 devices, 32 of one
    groups = GroupedTask(task, degree=2, recomputes=False)
    small = groups.task
    assert len(small.cluster) == 8 * 2 + 32
    assert small.cluster.devices[1].name == "datacenter-0:2"
    assert [each.memory_bytes for each in small.cluster.devices[15:17]] == [2**21, 2**20]
    # The messages of 1 kB at 100 Gbps take next to nothing of a second.
    assert small.slow[0] == pytest.approx(0.5, rel=1e-3)
    assert small.slow[20] == pytest.approx(1.0)
    plan = build(
        small, np.array([[0, 1], [16, 17]]), microbatch=1, schedule=ScheduleKind.ONE_F_ONE_B
    )
    whole = groups.plan(plan)
    assert whole.groups == ((0, 1), (2, 3), (32,), (33,))
    check_plan(whole, num_devices=64)
    check_hosts(whole.groups, task.cluster)
    assert whole.sync == plan.sync


def test_slow_links_inside_a_host_make_groups_slow():
    task = task_on("homogeneous:hosts=2,devices=2")
    large = replace(task, profile=profile_of(4, activation_bytes=10**10))
    assert GroupedTask(task, degree=2, recomputes=False).task.slow[0] == pytest.approx(0.5)
    # Ten gigabytes at 100 Gbps, four times a layer, for a second of compute.
    slow = GroupedTask(large, degree=2, recomputes=False).task.slow[0]
    assert slow == pytest.approx(0.5 + 4 * 0.8)
    again = GroupedTask(large, degree=2, recomputes=True).task.slow[0]
    assert again == pytest.approx(0.5 + 6 * 0.8)


@pytest.mark.parametrize(
    ("name", "most", "heads", "expected"),
    [
        ("case1-datacenter", 8, 16, (1, 2, 4, 8)),
        ("case1-datacenter", 8, 12, (1, 2, 4)),
        ("case1-datacenter", 3, 16, (1, 2)),
        ("case2-spot", 8, 16, (1, 2, 4)),
        ("case5-worldwide", 8, 16, (1,)),
        ("case1-datacenter", 1, 16, (1,)),
    ],
)
def test_degrees_are_those_of_hosts_and_heads(
    name: str, most: int, heads: int, expected: tuple[int, ...]
):
    assert degrees(task_on(name), most=most, num_heads=heads) == expected
