"""Profiles: sums of parts, files, and memory."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.errors import PlanError
from jaxpipe.plan import default_plan
from jaxpipe.plan.cost import (
    BytesPerParameter,
    Part,
    Profile,
    Software,
    flop_profile,
    live_limits,
    overfull,
    read_profile,
    stage_memory,
    write_profile,
)
from jaxpipe.schedule import ScheduleKind, peak_live
from jaxpipe.simulate.plan_step import segment_bytes
from tests.plan_section import decided

PARTS = st.builds(
    Part,
    forward_s=st.floats(0, 10),
    backward_s=st.floats(0, 10),
    parameters=st.integers(0, 2**40),
    kept_bytes=st.integers(0, 2**40),
    update_s=st.floats(0, 10),
)
PROFILES = st.builds(
    Profile,
    device=st.text(max_size=5),
    flops_per_s=st.floats(1, 1e15),
    microbatch=st.integers(1, 8),
    activation_bytes=st.integers(0, 2**40),
    embed=PARTS,
    layers=st.lists(PARTS, min_size=1, max_size=4).map(tuple),
    head=PARTS,
)


@given(PROFILES)
def test_a_file_gives_back_the_profile(tmp_path_factory: pytest.TempPathFactory, profile: Profile):
    path = tmp_path_factory.getbasetemp() / "profile.json"
    write_profile(profile, path)
    assert read_profile(path) == profile


@given(PROFILES)
def test_the_stages_of_every_cut_add_up_to_the_model(profile: Profile):
    whole = profile.stage((len(profile.layers),), 0)
    for cut in [(1, len(profile.layers) - 1), (len(profile.layers) - 1, 1)]:
        if min(cut) > 0:
            both = profile.stage(cut, 0) + profile.stage(cut, 1)
            assert both.parameters == whole.parameters
            assert both.backward_s == pytest.approx(whole.backward_s)
            assert both.update_s == pytest.approx(whole.update_s)


@given(PROFILES, st.integers(1, 8))
def test_an_update_is_one_of_a_step_whatever_the_microbatch(profile: Profile, microbatch: int):
    cut = (len(profile.layers),)
    whole_s = profile.update_s(cut, 0, tied=True)
    assert whole_s == profile.stage(cut, 0).update_s
    assert profile.scaled(microbatch=microbatch).update_s(cut, 0, tied=True) == whole_s


@pytest.mark.parametrize(("tied", "last_s"), [(False, 6.0), (True, 7.0)])
def test_both_ends_of_a_tied_model_update_the_embedding(tied: bool, last_s: float):
    uncosted = profile_of(2)
    profile = replace(
        uncosted,
        embed=Part(update_s=1.0),
        layers=tuple(replace(layer, update_s=2.0) for layer in uncosted.layers),
        head=Part(update_s=4.0),
    )
    assert profile.update_s((1, 1), 0, tied=tied) == 3.0
    assert profile.update_s((1, 1), 1, tied=tied) == last_s
    assert profile.update_s((2,), 0, tied=tied) == 9.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a profile"),
        ('{"device": "x"}', "missing required field.*shows the format"),
        (
            '{"device": "x", "flops_per_s": 0, "microbatch": 1, "activation_bytes": 1, '
            '"embed": {}, "layers": [{}], "head": {}}',
            r"`flops_per_s` \(0\.0\) must be positive",
        ),
        (
            '{"device": "x", "flops_per_s": 1, "microbatch": 1, "activation_bytes": 1, '
            '"embed": {"parameters": -1}, "layers": [{}], "head": {}}',
            "`parameters` must not be negative, is -1",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, words: str):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=words):
        read_profile(path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(PlanError, match=r"cannot read the profile .*: No such file"):
        read_profile(tmp_path / "none.json")


def profile_of(num_layers: int) -> Profile:
    return flop_profile(
        num_layers=num_layers,
        layer_flop=1e12,
        layer_parameters=100,
        layer_kept_bytes=7,
        activation_bytes=3,
        embed_parameters=50,
        head_parameters=20,
        flops_per_s=1e12,
    )


@pytest.mark.parametrize(("kind", "live"), [(ScheduleKind.GPIPE, (4, 4)), ("1f1b", (2, 1))])
def test_memory_is_parameters_and_live_microbatches(kind: str, live: tuple[int, int]):
    config = decided(cluster="two-region", stages=2, replicas=1, schedule=ScheduleKind(kind))
    plan = default_plan(config, topo.load("two-region"), num_layers=3, batch=4, tied=True)
    first, last = stage_memory(
        plan, profile_of(3), each=BytesPerParameter(parameter=2, gradient=4, optimizer=8)
    )
    assert (first.parameters, first.gradients, first.optimizer) == (500, 1000, 2000)
    assert last.parameters == 2 * (100 + 20 + 50)
    assert (first.activations, last.activations) == (live[0] * (14 + 3), live[1] * (7 + 3))
    assert first.packed == 1000
    assert first.total == 3500 + max(first.activations, first.packed)


def test_what_is_not_trained_has_no_gradient_and_no_moments():
    whole = profile_of(3)
    tuned = replace(
        whole,
        embed=replace(whole.embed, trained=0),
        layers=tuple(replace(each, trained=10) for each in whole.layers),
        head=replace(whole.head, trained=0),
    )
    config = decided(cluster="two-region", stages=2, replicas=1)
    plan = default_plan(config, topo.load("two-region"), num_layers=3, batch=4, tied=True)
    each = BytesPerParameter(parameter=2, gradient=4, optimizer=8)
    all_of, some_of = (stage_memory(plan, profile, each=each) for profile in (whole, tuned))
    for one, other, layers in zip(all_of, some_of, plan.cut, strict=True):
        assert (other.parameters, other.activations) == (one.parameters, one.activations)
        assert (other.gradients, other.optimizer) == (4 * 10 * layers, 8 * 10 * layers)
    assert segment_bytes(plan, tuned, gradient_bytes=4.0) == [4 * 10 * n for n in plan.segments]
    with pytest.raises(ValueError, match=r"`trained` .3. must be at most `parameters` .2."):
        Part(parameters=2, trained=3)


def test_memory_of_a_rank_is_that_of_its_chunks():
    config = decided(stages=4, chunks=2, replicas=1, schedule=ScheduleKind.INTERLEAVED)
    plan = default_plan(config, topo.load("two-region"), num_layers=5, batch=4, tied=True)
    apart = replace(plan, num_chunks=1, schedule=ScheduleKind.GPIPE).of_each(devices=(0, 1, 2, 3))
    each = BytesPerParameter()
    stages = stage_memory(apart, profile_of(5), each=each)
    ranks = stage_memory(plan, profile_of(5), each=each)
    assert [rank.parameters for rank in ranks] == [
        stages[0].parameters + stages[2].parameters,
        stages[1].parameters + stages[3].parameters,
    ]
    assert ranks[0].activations == peak_live(plan.compute_schedule())[0] * (2 * 7 + 3)


@pytest.mark.parametrize(
    ("tied", "num_replicas", "parameters"),
    [(False, 1, 250), (False, 2, 125), (False, 3, 84), (False, 4, 63), (True, 3, 50 + 67)],
)
def test_replicas_that_share_the_optimizer_out_hold_a_part_each(
    tied: bool, num_replicas: int, parameters: int
):
    config = decided(cluster="case3-universities", stages=2, replicas=num_replicas)
    cluster = topo.load("case3-universities")
    plan = default_plan(config, cluster, num_layers=3, batch=12, tied=tied)
    first, _ = stage_memory(plan, profile_of(3), each=BytesPerParameter(shards_optimizer=True))
    whole, _ = stage_memory(plan, profile_of(3), each=BytesPerParameter())
    assert first.optimizer == parameters * 8
    assert whole == replace(first, optimizer=250 * 8)


def test_devices_that_are_too_small_are_named():
    cluster = topo.load("case3-universities")
    config = decided(cluster="case3-universities", stages=2, replicas=2)
    plan = default_plan(config, cluster, num_layers=2, batch=4, tied=False)
    each = BytesPerParameter(parameter=10**8)
    small = overfull(plan, profile_of(2), cluster, each=BytesPerParameter())
    assert small == {}
    large = overfull(plan, profile_of(2), cluster, each=each)
    memory = stage_memory(plan, profile_of(2), each=each)
    gpu = cluster.devices[0].gpu
    assert gpu is not None
    excess = {0: memory[0].total - gpu.memory_bytes, 2: memory[0].total - gpu.memory_bytes}
    assert large == {device: bytes_ for device, bytes_ in excess.items() if bytes_ > 0}


def test_as_many_microbatches_live_as_fit_beside_the_parameters():
    cluster = topo.load("case3-universities")
    config = decided(cluster="case3-universities", stages=2, replicas=1)
    plan = default_plan(config, cluster, num_layers=2, batch=99, tied=False)
    gpu = cluster.devices[0].gpu
    assert gpu is not None
    held = 2 * 4 * 100  # parameters and gradients of a layer
    kept = (gpu.memory_bytes - held) // 7
    profile = flop_profile(
        num_layers=2,
        layer_flop=1.0,
        layer_parameters=100,
        layer_kept_bytes=kept - 5,
        activation_bytes=5,
        flops_per_s=1.0,
    )
    each = BytesPerParameter(optimizer=0)
    assert live_limits(plan, profile, cluster, each=each) == (7, 7)
    nowhere = replace(each, parameter=10**9)
    assert live_limits(plan, profile, cluster, each=nowhere) == (0, 0)
    laptop = topo.load("laptop")
    assert live_limits(plan, profile, laptop, each=each) == (99, 99)


def test_limits_of_live_microbatches_are_those_of_ranks_with_all_their_chunks():
    cluster = topo.load("case3-universities")
    config = decided(
        cluster="case3-universities",
        stages=4,
        chunks=2,
        replicas=1,
        schedule=ScheduleKind.INTERLEAVED,
    )
    plan = default_plan(config, cluster, num_layers=4, batch=100, tied=False)
    gpu = cluster.devices[0].gpu
    assert gpu is not None
    held = 2 * 2 * 4 * 100  # parameters and gradients of two chunks of a layer
    profile = flop_profile(
        num_layers=4,
        layer_flop=1.0,
        layer_parameters=100,
        layer_kept_bytes=(gpu.memory_bytes - held) // 7 - 5,
        activation_bytes=5,
        flops_per_s=1.0,
    )
    each = BytesPerParameter(optimizer=0)
    # The last stage is the largest: it is a chunk of the second rank.
    *others, last = profile.layers
    larger = replace(profile, layers=(*others, replace(last, kept_bytes=2 * last.kept_bytes)))
    assert live_limits(plan, profile, cluster, each=each) == (7, 7)
    assert live_limits(plan, larger, cluster, each=each) == (7, 3)
    assert live_limits(plan, profile, topo.load("laptop"), each=each) == (200, 200)


@given(st.floats(0, 10), st.none() | st.floats(0, 1), st.floats(0, 10), st.none() | st.floats(0, 1))
def test_what_can_wait_adds_up_and_scales(
    one_s: float, one_share: float | None, other_s: float, other_share: float | None
):
    one, other = (
        Part(backward_s=seconds, backward_weight_s=None if share is None else share * seconds)
        for seconds, share in ((one_s, one_share), (other_s, other_share))
    )
    both = one + other
    assert both.later_s == pytest.approx(one.later_s + other.later_s)
    assert both.scaled(3.0).later_s == pytest.approx(3.0 * both.later_s)
    assert (both.backward_weight_s is None) == (one_share is None and other_share is None)


def test_a_weight_part_longer_than_its_backward_is_refused():
    with pytest.raises(ValueError, match=r"`backward_weight_s` \(3\.0\)"):
        Part(backward_s=2.0, backward_weight_s=3.0)


def test_a_profile_takes_the_measured_size_that_is_nearest():
    def sized(microbatch: int, forward_s: float) -> Profile:
        return Profile(
            device="x",
            flops_per_s=1.0,
            microbatch=microbatch,
            activation_bytes=8 * microbatch,
            embed=Part(),
            layers=(Part(forward_s=forward_s, backward_s=2 * forward_s),),
            head=Part(),
        )

    profile = replace(sized(1, 1.0), sizes=(sized(4, 2.0),))
    seconds = [profile.scaled(microbatch=n).layers[0].forward_s for n in (1, 2, 3, 4, 8)]
    assert seconds == [1.0, 2.0, 1.5, 2.0, 4.0]


def test_software_delays_the_first_half_of_a_backward():
    part = Part(forward_s=1.0, backward_s=2.0, backward_weight_s=0.5)
    delayed = part.delayed(forward_s=0.25, backward_s=0.5)
    assert (delayed.forward_s, delayed.backward_s) == (1.25, 2.5)
    assert (delayed.earlier_s, delayed.later_s) == (2.0, 0.5)
    assert Software(message_s=1.0, byte_s=0.5).message(4) == 3.0


@pytest.mark.parametrize("name", ["call_s", "message_s", "byte_s", "step_s"])
def test_software_takes_no_negative_time(name: str):
    with pytest.raises(ValueError, match=f"`{name}` must not be negative, is -1.0"):
        replace(Software(), **{name: -1.0})
