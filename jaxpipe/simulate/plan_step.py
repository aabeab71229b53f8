"""A plan as a simulated step: the planner's objective `time`, and the expected time of a run.

::

    plan + profile ──► seconds of each rank's forward, backward and update
    plan + cluster ──► messages between stages, and all-reduces along the plan's sync trees
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

import numpy as np

from jaxpipe.collective import NO_CODECS, NO_CODING, Codecs, Coding, coding_of
from jaxpipe.network import MessageCosts
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Pipeline, Plan
from jaxpipe.plan.cost import NO_SOFTWARE, Part, Profile, SharedStage, shared_part
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate.engine.simulator import simulate_ends
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.simulate.gradient_transfers import gradient_collectives, parameter_gathers
from jaxpipe.topo import Cluster
from jaxpipe.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Overheads of software and hardware.

    `messages` and `gradients` are the costs of activations and of gradients on links; of the
    bandwidth of shared NICs `nic_efficiency` is usable; gradients are sent in chunks of
    `chunk_bytes`. A stage whose messages all stay inside its host takes `local_factor` times the
    seconds of the profile. With `blocking` no rank computes during a message between stages; with
    `posts_ahead` receives are posted before the computes that need them.
    """

    messages: MessageCosts = field(default_factory=MessageCosts)
    gradients: MessageCosts = field(default_factory=MessageCosts)
    nic_efficiency: float = 1.0
    chunk_bytes: float = inf
    local_factor: float = 1.0
    blocking: bool = False
    posts_ahead: bool = False


IDEAL = Overheads()
"""No overheads: links perform as the cluster file states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a simulation: cluster, profile, and bytes of a parameter's gradient.

    `slow[device]` is the factor by which the device is slower than the profiled one. With
    `recomputes` the profile's backwards compute the forwards again. Devices of a GPU type in
    `profiles` take the seconds of that profile; parameters and bytes are those of `profile`.
    `codecs` compress messages, of activations with `activation_value_bytes` a value without them;
    encoding and decoding take the seconds of one core of a host. Where replicas shard the optimizer
    (ZeRO-1), they gather `gathered_bytes` of each parameter after the update; 0 where they do not.
    With an `outer` loop, gradients are summed inside of islands, and a search minimises the seconds
    of a step on average (`jaxpipe.simulate.outer_step.mean_step_s`).
    """

    cluster: Cluster
    profile: Profile
    slow: np.ndarray
    gradient_bytes: float
    overheads: Overheads = IDEAL
    recomputes: bool = False
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    codecs: Codecs = NO_CODECS
    activation_value_bytes: float = 4.0
    gathered_bytes: float = 0.0
    outer: OuterConfig | None = None


def plan_step(plan: Plan, conditions: Conditions) -> StepModel:
    """Return one step of a plan.

    Raises:
        PlanError: the plan does not fit the cluster.
    """
    parts = [
        part for pipeline in plan.pipelines for part in _stage_costs(plan, pipeline, conditions)
    ]
    profile, chunk_bytes = conditions.profile, conditions.overheads.chunk_bytes
    return StepModel(
        cluster=conditions.cluster,
        placement=plan.placement,
        phases=(train_phase(plan, sharded=conditions.gathered_bytes > 0),),
        num_chunks=plan.num_chunks,
        forward_s=tuple(part.forward_s for part in parts),
        backward_s=tuple(part.backward_s for part in parts),
        backward_weight_s=_weights_s(parts),
        backward_input_s=_inputs_s(parts),
        update_s=tuple(part.update_s for part in parts) if any(p.update_s for p in parts) else None,
        activation_bytes=_activation_bytes(plan, conditions),
        coding=_boundary_coding(plan, conditions),
        collectives=gradient_collectives(
            plan,
            segment_bytes=segment_bytes(plan, profile, gradient_bytes=conditions.gradient_bytes),
            embed_bytes=profile.embed.num_gradients * conditions.gradient_bytes,
            chunk_bytes=chunk_bytes,
            far_ratio=conditions.codecs.far_ratio(conditions.gradient_bytes),
            far_coding=coding_of(conditions.codecs.gradients, profile.coding).times(
                1 / conditions.gradient_bytes
            ),
        ),
        gathers=parameter_gathers(
            plan, segment_bytes=gathered_bytes(plan, conditions), chunk_bytes=chunk_bytes
        ),
        messages=conditions.overheads.messages,
        gradients=conditions.overheads.gradients,
        nic_efficiency=conditions.overheads.nic_efficiency,
        blocking=conditions.overheads.blocking,
        posts_ahead=conditions.overheads.posts_ahead,
    )


def train_phase(plan: Plan, *, sharded: bool = False) -> Phase:
    """Return the programs of one step, of all replicas or of each; `sharded` is the optimizer."""
    if plan.is_even:
        return Phase(schedule=plan.train_schedule(sharded=sharded))
    first, *others = (
        plan.train_schedule(replica=n, sharded=sharded) for n in range(plan.num_replicas)
    )
    return Phase(schedule=first, others=tuple(others))


def segment_bytes(plan: Plan, profile: Profile, *, gradient_bytes: float) -> list[float]:
    """Return the bytes of the gradients of each segment, with a tied embedding in the first."""
    cut = plan.segments
    return [profile.stage(cut, n).num_gradients * gradient_bytes for n in range(len(cut))]


def gathered_bytes(plan: Plan, conditions: Conditions) -> tuple[float, ...]:
    """Return the bytes of each segment's parameters that replicas gather after the update.

    None if they do not shard the optimizer. Each copy of a tied embedding is updated whole.
    """
    each, profile = conditions.gathered_bytes, conditions.profile
    if plan.num_replicas == 1 or not each:
        return ()
    first, *others = segment_bytes(plan, profile, gradient_bytes=each)
    # Profiles count a tied embedding in the first stage only.
    return (first - plan.shares_embedding * profile.embed.num_gradients * each, *others)


def _plain_bytes(plan: Plan, pipeline: Pipeline, conditions: Conditions) -> tuple[int, ...]:
    """Return the bytes of a message over each boundary of a pipeline, before a codec.

    With several chunks on a rank, two ranks share several boundaries: all count as the largest.
    """
    profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
    sizes = profile.message_bytes(pipeline.cut)
    return sizes if plan.num_chunks == 1 else (max(sizes),) * len(sizes)


def _activation_bytes(
    plan: Plan, conditions: Conditions
) -> float | tuple[float | tuple[float, ...], ...]:
    """Return the bytes of a message between stages, of all replicas or of each, or its boundaries'.

    A pipeline's own codecs take the place of that of the conditions.
    """

    def of_replica(pipeline: Pipeline) -> float | tuple[float, ...]:
        profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
        plain = _plain_bytes(plan, pipeline, conditions) or (profile.activation_bytes,)
        codecs = [replace(conditions.codecs, boundary=codec) for codec in pipeline.codecs]
        sizes = tuple(
            num_bytes * each.boundary_ratio(conditions.activation_value_bytes)
            for num_bytes, each in zip(
                plain, codecs or [conditions.codecs] * len(plain), strict=True
            )
        )
        return sizes if len(set(sizes)) > 1 else sizes[0]

    each = tuple(of_replica(pipeline) for pipeline in plan.pipelines)
    only, *others = set(each)
    return each if others or isinstance(only, tuple) else only


def _boundary_coding(plan: Plan, conditions: Conditions) -> tuple[tuple[Coding, ...], ...]:
    """Return the seconds of coding at each boundary of each replica; nothing without any codec."""

    def of_replica(pipeline: Pipeline) -> tuple[Coding, ...]:
        kinds = pipeline.codecs or (conditions.codecs.boundary,) * (pipeline.num_stages - 1)
        return tuple(
            coding_of(kind, conditions.profile.coding).times(
                num_bytes / conditions.activation_value_bytes
            )
            for kind, num_bytes in zip(kinds, _plain_bytes(plan, pipeline, conditions), strict=True)
        )

    each = tuple(of_replica(pipeline) for pipeline in plan.pipelines)
    return each if any(coding != NO_CODING for row in each for coding in row) else ()


def _stage_costs(plan: Plan, pipeline: Pipeline, conditions: Conditions) -> Iterator[Part]:
    """Yield the costs of a microbatch on each stage of a pipeline, on its own devices."""
    profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
    own = {
        name: each.scaled(microbatch=pipeline.microbatch)
        for name, each in conditions.profiles.items()
    }
    factors, tensor_parts = _factors(pipeline, conditions), pipeline.tensor_parts
    for stage, (group, factor) in enumerate(zip(_holders(pipeline), factors, strict=True)):
        part = profile.stage(pipeline.cut, stage)
        of_gpu, slow = own.get(_gpu(group, conditions)), _slowest(group, conditions)
        seconds, slow = (profile, slow) if of_gpu is None else (of_gpu, 1.0)
        # An update takes as long for any microbatch, and a tied embedding is updated twice.
        update_s = seconds.update_s(pipeline.cut, stage, tied=plan.tied) * slow
        timed = replace(
            seconds.stage(pipeline.cut, stage).scaled(slow * factor),
            parameters=part.parameters,
            trained=part.trained,
            kept_bytes=part.kept_bytes,
            update_s=update_s,
        )
        shared = SharedStage(
            group=group,
            num_layers=pipeline.cut[stage],
            activation_bytes=profile.activation_bytes,
            gradient_bytes=part.num_gradients * conditions.gradient_bytes,
            is_first=stage == 0,
            is_last=stage == pipeline.num_stages - 1,
            recomputes=conditions.recomputes,
            data_parts=len(group) // tensor_parts[stage % pipeline.num_ranks],
        )
        stage_part = shared_part(timed, shared, plan.sharing, conditions.cluster)
        yield _with_software(stage_part, pipeline, stage, conditions)


def _weights_s(parts: Sequence[Part]) -> tuple[float, ...] | None:
    """Return the seconds of each backward-weight; None, which means half, if not profiled."""
    if all(part.backward_weight_s is None for part in parts):
        return None
    return tuple(part.later_s for part in parts)


def _inputs_s(parts: Sequence[Part]) -> tuple[float, ...] | None:
    """Return the seconds of each backward-input; None, which means the rest, if not profiled."""
    if all(part.backward_input_s is None for part in parts):
        return None
    return tuple(part.earlier_s for part in parts)


def _with_software(part: Part, pipeline: Pipeline, stage: int, conditions: Conditions) -> Part:
    """Return a stage with the seconds of its rank beside its layers.

    A message keeps both of its ranks busy; once a step the first stage of a rank has its own work.
    """
    software = conditions.profile.software
    if software == NO_SOFTWARE:
        return part
    groups, last = _holders(pipeline), pipeline.num_stages - 1
    profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
    messages = profile.message_bytes(pipeline.cut)
    # The message before a stage, in either direction, and that behind it: none inside a rank.
    messages_s = sum(
        software.message(messages[min(near, stage)])
        for near in (stage - 1, stage + 1)
        if 0 <= near <= last and groups[near] != groups[stage]
    )
    busy_s = software.call_s + messages_s
    is_first_of_rank = stage < pipeline.num_ranks
    delayed = part.delayed(forward_s=busy_s, backward_s=busy_s)
    return replace(delayed, update_s=part.update_s + is_first_of_rank * software.step_s)


def plan_step_s(plan: Plan, conditions: Conditions) -> float:
    """Return the simulated seconds of one step of a plan, every microbatch of it."""
    return simulate_ends(plan_step(plan, conditions)).last_s


def step_bound_s(plan: Plan, conditions: Conditions) -> float:
    """Return seconds that no simulated step of a plan is shorter than, whatever its messages take.

    ::

        before    the forwards of the first microbatch on the stages before those of a rank
        busy      all computes of the rank
        after     the backwards of the last microbatch on the stages before; none if they are split,
                  since a backward-weight may come last

    Their sum for the rank where it is largest: that of 1F1B on devices alike, without messages.
    Cost: a hundredth of a simulation.
    """
    splits = not isinstance(plan.schedule, ScheduleKind) or plan.schedule.facts.splits_backward
    bound_s = 0.0
    for pipeline in plan.pipelines:
        parts = tuple(_stage_costs(plan, pipeline, conditions))
        around_s = 0.0
        for rank in range(pipeline.num_ranks):
            stages = (parts[stage] for stage in pipeline.stages(rank))
            one_s = sum(part.forward_s + _least_backward_s(part, splits=splits) for part in stages)
            bound_s = max(bound_s, around_s + pipeline.num_microbatches * one_s)
            around_s += parts[rank].forward_s + (0.0 if splits else parts[rank].backward_s)
    return bound_s


def _least_backward_s(part: Part, *, splits: bool) -> float:
    # A schedule from a file may split some backwards only.
    return min(part.backward_s, part.earlier_s + part.later_s) if splits else part.backward_s


def end_s(trace: Trace) -> float:
    """Return when the last span ends."""
    return max(span.end_s for span in trace.spans)


def _factors(pipeline: Pipeline, conditions: Conditions) -> list[float]:
    """Return the factor of each stage of a pipeline whose messages stay inside its host."""
    local, groups = conditions.overheads.local_factor, _holders(pipeline)
    devices = tuple(group[0] for group in groups)
    return [
        1.0 if is_remote(conditions.cluster, devices, stage) else local
        for stage in range(len(groups))
    ]


def _gpu(group: tuple[int, ...], conditions: Conditions) -> str:
    """Return the GPU type of the slowest device of a group; "" if it has none."""
    slowest = max(group, key=lambda device: float(conditions.slow[device]))
    gpu = conditions.cluster.devices[slowest].gpu
    return "" if gpu is None else gpu.name


def _slowest(group: tuple[int, ...], conditions: Conditions) -> float:
    return max(float(conditions.slow[device]) for device in group)


def _holders(pipeline: Pipeline) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each stage of a pipeline."""
    groups = pipeline.groups
    return tuple(groups[stage % len(groups)] for stage in range(pipeline.num_stages))


def is_remote(cluster: Cluster, row: tuple[int, ...], stage: int) -> bool:
    """Return whether a stage, on the device `row[stage]`, has a neighbour on another host."""
    # From 0 at least: a slice from -1 would start at the last stage.
    hosts = [cluster.devices[device].host for device in row[max(0, stage - 1) : stage + 2]]
    return any(a != b for a, b in pairwise(hosts))
