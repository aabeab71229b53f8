"""Codecs of plans: chosen as all pairs say, and counted as the transport counts them."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpipe.collective import AllReduceKind, CodecKind, CodecLimit, Codecs, all_reduce_transfers
from jaxpipe.collective.codec.block_quantized import BLOCK
from jaxpipe.collective.codec.codecs import codec_of
from jaxpipe.comm import CountingTransport, Transport, WireFormat, all_reduce, run_ranks
from jaxpipe.config import Config, config_from
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan, default_plan, write_plan
from jaxpipe.propose.boundary_codecs import with_boundary_codecs
from jaxpipe.propose.codec_choice import choose_codecs, strongest
from jaxpipe.propose.options import Goal, OuterQuestion, SearchOptions
from jaxpipe.propose.proposal import propose
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.schedule import Remat
from jaxpipe.search import Task
from jaxpipe.simulate import Conditions, plan_step, plan_step_s
from tests.plan_section import decided
from tests.propose.asked import asked, known

SLOW = """
name = "slow"
[[hosts]]
region = "a"
name = "a"
devices = 2
effective_tflops = 1.0
[[hosts]]
region = "b"
name = "b"
devices = 2
effective_tflops = 1.0
[inside_region]
latency_ms = 0.1
bandwidth_gbps = 100
[across_regions]
latency_ms = 10
bandwidth_gbps = {gbps}
"""


def slow(folder: Path, *, gbps: float = 0.05, **plan: object) -> Config:
    """Return a configuration for two hosts of two devices, with a slow link between them."""
    path = folder / f"slow-{gbps}.toml"
    path.write_text(SLOW.format(gbps=gbps))
    return asked(
        cluster=str(path), batch=8, paced={"ideal": "true"}, train={"remat": "full"}, plan=plan
    )


def plans(task: Task) -> list[Plan]:
    """Return plans of all shapes of the four devices, across the slow link and along it."""
    found = []
    kinds = (AllReduceKind.HIERARCHICAL, AllReduceKind.RING)
    for (stages, replicas), kind in product(((4, 1), (2, 2), (1, 4)), kinds):
        config = decided(
            cluster="", stages=stages, replicas=replicas, microbatch=1, all_reduce=kind
        )
        plan = default_plan(
            config, task.cluster, num_layers=task.num_layers, batch=task.batch, tied=task.tied
        )
        found.append(plan)
    return found


def all_pairs(limit: CodecLimit) -> list[Codecs]:
    """Return every pair of codecs within a limit, fp8 included."""
    if limit is CodecLimit.NONE:
        return [Codecs()]
    hard = (CodecKind.INT4, CodecKind.ROTATED3)
    kinds = [kind for kind in CodecKind if kind not in (*hard, CodecKind.TOP_K)]
    if limit is CodecLimit.SAFE:
        return [Codecs(boundary=a, gradients=b) for a, b in product(kinds, kinds)]
    kinds += hard
    return [Codecs(boundary=a, gradients=b) for a, b in product(kinds, CodecKind)]


def harshness(codecs: Codecs) -> int:
    """Return the position of the harder of both codecs, the gentlest first."""
    order = list(CodecKind)
    return max(order.index(codecs.boundary), order.index(codecs.gradients))


def fastest_s(plan: Plan, conditions: Conditions, limit: CodecLimit) -> float:
    """Return the seconds of the fastest pair, by simulating each: the oracle."""
    return min(
        plan_step_s(variant, replace(conditions, codecs=codecs))
        for codecs in all_pairs(limit)
        for variant in {plan, replace(plan, all_reduce=AllReduceKind.HIERARCHICAL)}
    )


@pytest.mark.parametrize(
    ("gbps", "limit"), [(0.05, CodecLimit.ANY), (0.05, CodecLimit.SAFE), (2.0, CodecLimit.ANY)]
)
def test_no_pair_of_codecs_is_much_faster(tmp_path: Path, gbps: float, limit: CodecLimit):
    task, conditions = known(slow(tmp_path, gbps=gbps))
    for plan in plans(task):
        choice = choose_codecs(plan, conditions, limit)
        assert choice.plain_s <= plan_step_s(plan, conditions)
        assert choice.step_s <= 1.01 * fastest_s(plan, conditions, limit)
        with_them = replace(conditions, codecs=choice.codecs)
        assert choice.step_s == plan_step_s(choice.plan, with_them)
        if choice.codecs.gradients is not CodecKind.NONE:
            assert choice.plan.all_reduce is AllReduceKind.HIERARCHICAL
        for each in choice.trials:
            if harshness(each.codecs) < harshness(choice.codecs):
                assert each.step_s > choice.step_s


def test_without_codecs_a_plan_stays_as_it_is(tmp_path: Path):
    task, conditions = known(slow(tmp_path))
    for plan in plans(task):
        choice = choose_codecs(plan, conditions, CodecLimit.NONE)
        assert choice.plan is plan
        assert choice.codecs == Codecs()
        assert choice.step_s == plan_step_s(plan, conditions)


def test_a_chain_gives_way_to_a_flat_tree_whose_messages_are_all_compressed(tmp_path: Path):
    task, conditions = known(slow(tmp_path, cluster="homogeneous:hosts=4,bandwidth_gbps=0.1"))
    plan = next(each for each in plans(task) if each.num_replicas == 4)
    chained = replace(plan, sync=((0, (1, (2, 3))),), all_reduce=AllReduceKind.HIERARCHICAL)
    coded = Codecs(gradients=CodecKind.INT8)
    choice = choose_codecs(chained, conditions, CodecLimit.SAFE)
    assert choice.codecs == coded
    assert choice.plan.sync == ((0, 1, 2, 3),)
    along_s = plan_step_s(chained, replace(conditions, codecs=coded))
    assert choice.step_s < 0.9 * min(along_s, choice.plain_s)


def test_fast_links_need_no_codecs(tmp_path: Path):
    task, conditions = known(slow(tmp_path, gbps=1e5))
    for plan in plans(task):
        assert choose_codecs(plan, conditions, CodecLimit.ANY).codecs == Codecs()


def test_activations_in_bfloat16_are_not_rounded_to_it(tmp_path: Path):
    task, conditions = known(slow(tmp_path))
    halved = replace(conditions, activation_value_bytes=2.0)
    (pipeline,) = [plan for plan in plans(task) if plan.num_replicas == 1][:1]
    tried = {
        each.codecs.boundary for each in choose_codecs(pipeline, halved, CodecLimit.SAFE).trials
    }
    assert tried == {CodecKind.NONE, CodecKind.INT8}


# Not a power of two, with islands of unequal sizes, and without islands; parts in whole blocks.
@pytest.mark.parametrize("tree", [((0, 1), (2, 3)), ((0, 1), 2), (0, 1, 2), (0, 1)])
@pytest.mark.parametrize("kind", [CodecKind.BF16, CodecKind.INT8])
def test_far_gradients_have_the_bytes_that_are_sent(tree: tuple, kind: CodecKind):
    num_ranks = max(jax.tree.leaves(tree)) + 1
    size = 12 * BLOCK * num_ranks

    def work(transport: Transport) -> int:
        counted = CountingTransport(transport)
        wire = WireFormat(far=codec_of(kind), chunk_bytes=4 * size)
        array = np.ones(size, np.float32)
        all_reduce(
            counted,
            array,
            tree,
            tag=0,
            timeout_s=20.0,
            algorithm=AllReduceKind.HIERARCHICAL,
            wire=wire,
        )
        return counted.num_bytes_sent

    ratio = Codecs(gradients=kind).far_ratio(4)
    collective = all_reduce_transfers(
        AllReduceKind.HIERARCHICAL, tree, num_bytes=4.0 * size, far_ratio=ratio
    )
    sent = [
        sum(each.num_bytes for each in collective if each.source == rank)
        for rank in range(num_ranks)
    ]
    assert run_ranks(num_ranks, work) == pytest.approx(sent)


def test_other_all_reduces_have_no_far_messages():
    for kind in AllReduceKind:
        if kind not in (AllReduceKind.HIERARCHICAL, AllReduceKind.LIBRARY):
            plain = all_reduce_transfers(kind, (0, 1, 2), num_bytes=12.0)
            assert all_reduce_transfers(kind, (0, 1, 2), num_bytes=12.0, far_ratio=0.1) == plain


@pytest.mark.parametrize("kind", [CodecKind.BF16, CodecKind.INT8, CodecKind.FP8])
def test_messages_between_stages_have_the_bytes_of_their_codec(tmp_path: Path, kind: CodecKind):
    task, conditions = known(slow(tmp_path))
    plan = plans(task)[0]
    values = plan_step(plan, conditions).message_bytes(0, 1) / conditions.activation_value_bytes
    codec = codec_of(kind)
    assert codec is not None
    assert values % BLOCK == 0
    coded = plan_step(plan, replace(conditions, codecs=Codecs(boundary=kind)))
    assert coded.message_bytes(0, 1) == codec.num_bytes(size=int(values))


def test_only_a_boundary_over_the_slow_link_is_compressed(tmp_path: Path):
    """Four stages over two hosts: the two boundaries inside a host keep their precision."""
    task, conditions = known(slow(tmp_path))
    plan = plans(task)[0]
    choice = choose_codecs(plan, conditions, CodecLimit.SAFE)
    (pipeline,) = choice.plan.pipelines
    assert choice.codecs.boundary is CodecKind.INT8
    assert pipeline.codecs == (CodecKind.NONE, CodecKind.INT8, CodecKind.NONE)
    fastest = min(trial.step_s for trial in choice.trials)
    assert plan_step_s(choice.plan, replace(conditions, codecs=choice.codecs)) <= 1.01 * fastest
    # The codec of the conditions counts where a plan says nothing, and only there.
    other = replace(conditions, codecs=replace(choice.codecs, boundary=CodecKind.NONE))
    assert plan_step_s(choice.plan, other) == choice.step_s


def test_boundaries_alone_get_codecs_within_the_limit(tmp_path: Path):
    """Those of a new plan for a running configuration, whose gradients keep their codec."""
    task, conditions = known(slow(tmp_path))
    plan = plans(task)[0]
    configured = replace(conditions, codecs=Codecs(gradients=CodecKind.BF16))
    (safe,) = with_boundary_codecs(plan, configured, CodecLimit.SAFE).pipelines
    assert safe.codecs == (CodecKind.NONE, CodecKind.INT8, CodecKind.NONE)
    (hard,) = with_boundary_codecs(plan, configured, CodecLimit.ANY).pipelines
    assert hard.codecs == (CodecKind.NONE, CodecKind.ROTATED3, CodecKind.NONE)
    # None is a choice, too: it takes the place of what is configured.
    (none,) = with_boundary_codecs(plan, configured, CodecLimit.NONE).pipelines
    assert none.codecs == (CodecKind.NONE,) * 3
    quick = replace(configured, profile=replace(configured.profile, activation_bytes=8))
    (unneeded,) = with_boundary_codecs(plan, quick, CodecLimit.ANY).pipelines
    assert unneeded.codecs == (CodecKind.NONE,) * 3


def test_no_codec_is_chosen_for_links_on_which_encoding_takes_longer(tmp_path: Path):
    """Four stages over links of 100 Gbps: fewer bytes would save less than one core needs."""
    task, conditions = known(slow(tmp_path, gbps=100.0))
    plan = plans(task)[0]
    choice = choose_codecs(plan, conditions, CodecLimit.ANY)
    assert choice.codecs.boundary is CodecKind.NONE
    int8 = replace(conditions, codecs=Codecs(boundary=CodecKind.INT8))
    assert plan_step_s(plan, int8) > plan_step_s(plan, conditions)


@pytest.mark.slow
def test_the_search_is_as_good_as_all_plans_with_all_codecs(tmp_path: Path):
    # Inside a host, links are so fast that encoding takes longer: all devices have to be used.
    config = slow(tmp_path, codecs="safe", stages=4, replicas=1)
    task, conditions = known(config)
    found = propose(config, SearchOptions(budget=1.5))
    assert found.codecs is not None
    shapes = [plan for plan in plans(task) if plan.num_stages == 4]
    best_s = min(fastest_s(plan, conditions, CodecLimit.SAFE) for plan in shapes)
    assert found.split.step_s == pytest.approx(found.codecs.step_s)
    assert found.split.step_s <= 1.01 * best_s
    assert found.split.step_s < found.codecs.other_plain_s
    assert found.split.step_s >= found.bound.seconds
    plain = propose(slow(tmp_path, stages=4, replicas=1), SearchOptions(budget=1.5))
    assert plain.codecs is None
    assert plain.split.step_s > found.split.step_s


def test_a_run_with_the_chosen_codecs_is_simulated_and_accepted(tmp_path: Path):
    asked_for = slow(tmp_path)
    task, conditions = known(asked_for)
    plan = next(p for p in plans(task) if p.all_reduce is AllReduceKind.RING)
    choice = choose_codecs(
        replace(plan, all_reduce=AllReduceKind.RING), conditions, CodecLimit.SAFE
    )
    file = tmp_path / "plan.toml"
    write_plan(choice.plan, task.cluster, file, about="")
    tree = {
        "run": {"folder": str(tmp_path / "run")},
        "data": {"folder": "data"},
        "model": {"preset": "tiny"},
        "plan": {"cluster": asked_for.plan.cluster, "file": str(file)},
        "train": {"batch": 8, "remat": "full"},
        "comm": {"boundary": choice.codecs.boundary, "gradients": choice.codecs.gradients},
    }
    config = config_from(tree)
    assert plan_from(config) == replace(choice.plan, remat=Remat.FULL)
    none = config_from({**tree, "comm": {}})
    assert _end_s(config) < _end_s(none)


def _end_s(config: object) -> float:
    trace = simulate_step(config)  # pyright: ignore[reportArgumentType]
    return max(span.end_s for span in trace.spans)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": Goal.ENERGY}, r"`plan.codecs` \(safe\) is chosen by seconds, but"),
        ({"max_step_dollars": 1.0}, r"`plan.codecs` \(safe\) is chosen by seconds, but"),
        ({"outer": OuterQuestion.AUTO}, r"`--outer` \(auto\) compares codecs of its own"),
    ],
)
def test_what_codecs_exclude_is_refused(tmp_path: Path, changes: dict[str, object], words: str):
    options = SearchOptions(**changes)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=words):
        propose(slow(tmp_path, codecs="safe"), options)


def test_limits_hold_less_and_less():
    assert strongest(CodecLimit.NONE) == Codecs()
    assert strongest(CodecLimit.SAFE) == Codecs(boundary=CodecKind.INT8, gradients=CodecKind.INT8)
    assert strongest(CodecLimit.ANY) == Codecs(
        boundary=CodecKind.ROTATED3, gradients=CodecKind.TOP_K
    )
