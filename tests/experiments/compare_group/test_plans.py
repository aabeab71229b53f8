"""The jobs of all settings: the same devices and samples, placed as they should be."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.compare_group.cases import Case, Setting, cluster_of, read_cases
from experiments.compare_group.choices import with_chain, with_gpipe
from experiments.compare_group.jobs import Group, step_s
from experiments.compare_group.plans import find, placed, read_found, unscheduled_plan
from experiments.compare_group.simulated import uneven
from experiments.compare_group.sizes import resized, theirs
from experiments.compare_group.small import read_small, scaled_cluster
from jaxpipe.collective import ranks
from jaxpipe.plan import check_plan
from jaxpipe.schedule import Op
from jaxpipe.simulate import dtfm_constants
from jaxpipe.topo import subcluster

CASES = read_cases()
PLANS = Path("experiments/compare_group/results/plans")


@pytest.mark.parametrize("case", CASES.cases, ids=lambda case: case.name)
def test_all_settings_run_on_devices_of_the_case_and_take_all_samples(case: Case):
    group = Group(case=case, cases=CASES, constants=dtfm_constants(), plans=PLANS)
    for setting in (Setting.MEGATRON_P8, Setting.OURS, Setting.OURS_UNSCHEDULED, Setting.DTFM):
        job = group.job(setting)
        forwards = [
            instruction
            for phase in job.phases
            for instruction in phase.schedule[0]
            # Of the first stage alone: a rank has several where its layers are in chunks.
            if instruction.op is Op.FORWARD and instruction.stage == 0
        ]
        plan = group.plan(setting)
        samples = 1 if plan is None else plan.microbatch  # of a microbatch
        assert samples * len(forwards) * len(job.placement) == CASES.batch, setting
        assert job.num_ranks <= len(group.cluster) <= 64


def test_without_a_scheduler_only_places_and_trees_change():
    case = CASES.cases[4]
    cluster = cluster_of(case, batch=CASES.batch)
    ours = read_found(case, cluster, PLANS)
    other = unscheduled_plan(ours, cluster, seed=CASES.seed)
    check_plan(other, num_devices=len(cluster))
    assert other != ours
    kept = replace(
        other.on_devices(ours.placement),
        sync=ours.sync,
        sync_shared=ours.sync_shared,
        sync_all=ours.sync_all,
    )
    assert kept == ours
    assert [sorted(ranks(tree)) for tree in other.sync] == [
        list(ranks(tree)) for tree in other.sync
    ]


def test_one_choice_at_a_time_is_replaced():
    case = CASES.cases[3]
    cluster = cluster_of(case, batch=CASES.batch)
    ours = read_found(case, cluster, PLANS)
    chain, gpipe = with_chain(ours), with_gpipe(ours)
    for other in (chain, gpipe):
        check_plan(other, num_devices=len(cluster))
    assert replace(chain, all_reduce=ours.all_reduce, sync=ours.sync) == ours
    assert chain.sync[1] == tuple(ours.rank(replica=n, stage=1) for n in range(ours.num_replicas))
    assert replace(gpipe, schedule=ours.schedule).of_each(warmup=ours.warmup) == ours


@pytest.mark.slow
def test_a_plan_that_is_found_is_read_back(tmp_path: Path):
    case = CASES.cases[2]
    seconds = find(case, CASES, dtfm_constants(), folder=tmp_path, cpu_s=0.01)
    cluster = cluster_of(case, batch=CASES.batch)
    plan = read_found(case, cluster, tmp_path)
    assert seconds > 0
    assert placed(plan, range(64)).device(5) == 5


def test_scaled_links_keep_the_ratio_of_messages_to_time():
    small = read_small()
    network = small.networks[0]
    cluster = scaled_cluster(network, small)
    whole = cluster_of(CASES.cases[2], batch=CASES.batch)
    there = whole.link(network.devices[0], network.devices[-1])
    here = cluster.link(0, len(cluster) - 1)
    published_s = 2**23 / there.bandwidth_bytes_per_s
    ours_s = 2**23 / small.bytes_scale / here.bandwidth_bytes_per_s
    assert ours_s == pytest.approx(small.time_scale * published_s)
    assert here.latency_s == pytest.approx(small.time_scale * there.latency_s)


def test_a_part_of_a_cluster_keeps_links_and_order():
    whole = cluster_of(CASES.cases[4], batch=CASES.batch)
    few = subcluster(whole, (40, 8, 9), name="few")
    assert few.name == "few"
    assert [device.region for device in few.devices] == ["london", "virginia", "virginia"]
    assert few.link(0, 1) == whole.link(40, 8)
    assert few.link(1, 0) == whole.link(8, 40)


def test_uneven_computes_are_those_of_the_job_but_for_a_little():
    group = Group(case=CASES.cases[0], cases=CASES, constants=dtfm_constants(), plans=PLANS)
    job = group.job(Setting.MEGATRON_P8)
    other = uneven(job, by=1e-3, seed=0)
    assert other.forward_s == pytest.approx(job.forward_s, rel=0.01)
    assert len({round(s / o, 9) for s, o in zip(job.forward_s, other.forward_s, strict=True)}) > 1
    assert replace(other, forward_s=job.forward_s, backward_s=job.backward_s) == job
    assert uneven(job, by=0.0, seed=0) == job


def test_a_resized_plan_has_all_layers_and_more_microbatches():
    group = Group(case=CASES.cases[0], cases=CASES, constants=dtfm_constants(), plans=PLANS)
    found = group.plan(Setting.OURS)
    assert found is not None
    plan = resized(found, layers=40, factor=4)
    assert sum(plan.cut) == 40
    assert max(plan.cut) - min(plan.cut) <= 1
    assert plan.num_microbatches == 4 * found.num_microbatches
    assert resized(found, layers=24, factor=1).placement == found.placement


def test_stored_seconds_of_other_systems_are_those_of_a_simulation():
    case = CASES.cases[3]
    stored = theirs(case, CASES)
    group = Group(case=case, cases=CASES, constants=dtfm_constants(), plans=PLANS)
    simulated_s = step_s(group.job(Setting.ZERO3))
    assert stored[Setting.ZERO3](CASES.batch) == pytest.approx(simulated_s, abs=0.01)
    assert stored[Setting.MEGATRON_OPTIMAL](1024) <= stored[Setting.MEGATRON_P8](1024)


@pytest.mark.parametrize("name", ["fluidstack 3", "homogeneous"])
def test_where_others_trained_on_other_devices_nothing_is_stored(name: str):
    case = next(each for each in CASES.cases if each.name == name)
    assert not theirs(case, CASES)
