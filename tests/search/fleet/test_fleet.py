"""Plans of fleets: shares, blocks, the closed form against simulations, and the search."""

from dataclasses import replace
from functools import cache
from itertools import permutations, product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.network import MessageCosts
from jaxpipe.plan import Plan
from jaxpipe.plan.check import check_plan
from jaxpipe.plan.cost import flop_profile, overfull
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search import Task
from jaxpipe.search.fleet import (
    Along,
    Choice,
    Fits,
    FleetCosts,
    Team,
    Teams,
    blocks_of,
    plan_of_teams,
    search_fleet,
    shared_out,
)
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import Cluster, Device, Host, Trunk

_GBPS = 1e9 / 8
_SPEEDS = {"fast": 4e12, "slow": 1e12}


@cache
def cluster(
    *,
    regions: int = 2,
    hosts: int = 2,
    per_host: int = 2,
    nic_gbps: float = inf,
    trunk_gbps: float | None = None,
) -> Cluster:
    """Return regions of fast hosts and as many slow ones, 1 Gbit/s and 20 ms apart."""
    made = [
        (f"r{region}", f"r{region}-{kind}-{number}", kind)
        for region in range(regions)
        for kind in _SPEEDS
        for number in range(hosts)
    ]
    devices = tuple(
        Device(
            name=f"{host}:{slot}",
            host=host,
            region=region,
            effective_flops_per_s=_SPEEDS[kind],
            memory_bytes=16 * 2**30,
        )
        for region, host, kind in made
        for slot in range(per_host)
    )
    same_host = np.array([[a.host == b.host for b in devices] for a in devices])
    same_region = np.array([[a.region == b.region for b in devices] for a in devices])
    latency = np.where(same_host, 1e-5, np.where(same_region, 1e-3, 2e-2))
    bandwidth = _GBPS * np.where(same_host, 100.0, np.where(same_region, 10.0, 1.0))
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(bandwidth, np.inf)
    nic = nic_gbps * _GBPS
    return Cluster(
        name="fleet",
        devices=devices,
        latency_s=latency,
        bandwidth_bytes_per_s=bandwidth,
        hosts=tuple(
            Host(name=host, region=region, egress_bytes_per_s=nic, ingress_bytes_per_s=nic)
            for region, host, _ in made
        ),
        trunks=tuple(
            Trunk(source=f"r{a}", destination=f"r{b}", bytes_per_s=trunk_gbps * _GBPS)
            for a, b in permutations(range(regions), 2)
            if trunk_gbps is not None
        ),
    )


def costs(where: Cluster, *, batch: int = 32, parameters: int = 5_000_000) -> FleetCosts:
    profile = flop_profile(
        num_layers=8,
        layer_flop=2e10,
        layer_parameters=parameters,
        layer_kept_bytes=10**6,
        activation_bytes=10**6,
        flops_per_s=4e12,
    )
    return FleetCosts(
        task=Task(cluster=where, profile=profile, batch=batch), messages=MessageCosts()
    )


def simulated_s(of: FleetCosts, plan: Plan) -> float:
    task = of.task
    conditions = Conditions(
        cluster=task.cluster, profile=task.profile, slow=task.slow, gradient_bytes=4
    )
    return plan_step_s(plan, conditions)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=3),
    st.integers(0, 5),
)
def test_no_other_shares_end_sooner(paces: list[tuple[int, int]], spare: int):
    first, each = (np.array(part, float) for part in zip(*paces, strict=True))
    total = len(paces) + spare
    counts = shared_out(first, each, total)
    assert counts.sum() == total
    assert counts.min() >= 1
    all_shares = product(range(1, total + 1), repeat=len(paces))
    best = min((first + (np.array(s) - 1) * each).max() for s in all_shares if sum(s) == total)
    assert (first + (counts - 1) * each).max() == pytest.approx(best)


@pytest.mark.parametrize("along", Along)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_blocks_and_their_teams_have_every_device_at_most_once(along: Along, stages: int):
    task = costs(cluster(hosts=3)).task
    blocks = blocks_of(task)
    assert sorted(d for block in blocks for host in block.hosts for d in host) == list(
        range(len(task.cluster))
    )
    teams = Teams(task, blocks)
    choices = dict.fromkeys(range(len(blocks)), Choice(stages=stages, along=along))
    used = [d for team in teams.of(choices) for d in team.devices.ravel().tolist()]
    for region in ("r0", "r1"):
        used += [d for t in teams.pooled(choices, region, 1) for d in t.devices.ravel().tolist()]
    assert sorted(used) == list(range(len(task.cluster)))


@pytest.mark.parametrize(
    ("along", "stages", "nic_gbps", "trunk_gbps"),
    [
        (Along.PIPELINE, 2, inf, None),
        (Along.STAGE, 2, inf, None),
        (Along.PIPELINE, 4, inf, None),
        (Along.PIPELINE, 2, 4.0, None),
        (Along.STAGE, 2, 4.0, None),
        (Along.PIPELINE, 2, inf, 1.0),
        (Along.STAGE, 2, 4.0, 0.5),
    ],
)
def test_the_closed_form_is_near_the_simulation(
    along: Along, stages: int, nic_gbps: float, trunk_gbps: float | None
):
    found = costs(cluster(nic_gbps=nic_gbps, trunk_gbps=trunk_gbps))
    teams = Teams(found.task, blocks_of(found.task))
    choice = Choice(stages=stages, along=along)
    chosen = teams.of(dict.fromkeys(range(len(teams.blocks)), choice))
    kind = ScheduleKind.ONE_F_ONE_B
    step = found.step(chosen, microbatch=1, schedule=kind)
    plan = plan_of_teams(found.task, chosen, step.counts, microbatch=1, schedule=kind)
    check_plan(plan, num_devices=len(found.task.cluster))
    assert plan.all_reduce is AllReduceKind.HIERARCHICAL
    assert step.step_s == pytest.approx(simulated_s(found, plan), rel=0.15)


def test_a_lone_all_reduce_takes_what_its_messages_take():
    """Four equal holders on two hosts in each of two regions: computed by hand."""
    found = costs(cluster(hosts=2), parameters=10**6)
    # One device of each fast host: nothing is shared inside a host.
    fast = [n for n, d in enumerate(found.task.cluster.devices) if d.name.endswith(":0")]
    fast = [n for n in fast if found.task.slow[n] == 1.0]
    team = Team(devices=np.array(fast)[:, None], cut=(8,))
    num_bytes = 8 * 4 * 10**6
    region_s = 1e-3 + num_bytes / 2 / (10 * _GBPS)
    world_s = 2e-2 + num_bytes / 2 / 2 / (1 * _GBPS)
    assert found.sync_s([team]) == pytest.approx(2 * (region_s + world_s))


def test_the_search_beats_equal_choices_and_random_plans_and_fits():
    where = cluster(regions=5, hosts=5, per_host=4, nic_gbps=10.0)  # 200 devices
    of = costs(where, batch=600)
    found = search_fleet(of, limit_s=60.0)
    task = of.task
    assert not overfull(found.plan, task.profile, where, each=task.bytes_each)
    check_plan(found.plan, num_devices=len(where))
    assert found.plan.batch == task.batch
    assert found.step.step_s <= found.coarse_s
    random = np.random.default_rng(0)
    for _ in range(20):
        rows = random.permutation(len(where)).reshape(-1, int(random.choice([2, 4, 8])))
        team = Team(devices=rows, cut=(8 // rows.shape[1],) * rows.shape[1])
        other = of.step([team], microbatch=1, schedule=ScheduleKind.EAGER_ONE_F_ONE_B)
        assert found.step.step_s < other.step_s


def test_slow_devices_behind_a_slow_link_are_left_out():
    where = cluster(regions=1, hosts=1, per_host=2)
    far = replace(
        where,
        latency_s=where.latency_s.copy(),
        bandwidth_bytes_per_s=where.bandwidth_bytes_per_s.copy(),
        alone_bytes_per_s=np.empty((0, 0)),
    )
    far.latency_s[:2, 2:] = far.latency_s[2:, :2] = 5.0
    found = search_fleet(costs(far, batch=8))
    used = {device for row in found.plan.placement for device in row}
    assert used == {0, 1}


def test_a_model_that_fits_nowhere_is_refused():
    of = costs(cluster(), parameters=10**10)
    with pytest.raises(PlanError, match="none does for 8 layers, `batch` 32"):
        search_fleet(of)


def test_memory_is_that_of_each_device():
    of = costs(cluster(), parameters=10**8)
    assert Fits(of.task)(
        [Team(devices=np.array([[0, 1]]), cut=(4, 4))],
        microbatch=1,
        schedule=ScheduleKind.ONE_F_ONE_B,
    ) == (4 * 10**8 * 16 + 3 * 10**6 < 16 * 2**30)
    assert not Fits(of.task)(
        [Team(devices=np.array([[0]]), cut=(8,))],
        microbatch=10**4,
        schedule=ScheduleKind.ONE_F_ONE_B,
    )
