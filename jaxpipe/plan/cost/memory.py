"""Peak memory of a rank: what it holds all the time, and the larger of what two phases add.

::

    parameters, gradients, moments          all the time
    + activations, copies of parameters     while microbatches are computed
    + packed gradients                      afterwards: the vectors of the all-reduce are new arrays
"""

from dataclasses import dataclass

from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.group import Sharing
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import ScheduleKind, peak_live, peak_live_of_kind
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParameter:
    """Bytes per parameter: of the value, its gradient, and the optimizer's moments.

    `copy` are those of the array that layers read in place of the value: one of another dtype, or
    one with merged adapters. The default is AdamW in fp32, two moments and no copy. With
    `shards_optimizer` (ZeRO-1) each replica has an equal shard of the moments of each segment of
    its stages, but all of those of a tied embedding that stages of any replica share.
    """

    parameter: int = 4
    gradient: int = 4
    optimizer: int = 8
    copy: int = 0
    shards_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The bytes of a rank, for all its stages.

    `copies` are those that layers read in place of the parameters, until the last backward.
    `packed` are the gradients of its largest stage once more, as vectors: those of a stage are
    packed when its last backward is over, and only then released.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    copies: int = 0
    packed: int = 0

    @property
    def state(self) -> int:
        """The bytes that it holds all the time."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def buffers(self) -> int:
        """The most that a phase of a step adds."""
        return max(self.copies + self.activations, self.packed)

    @property
    def total(self) -> int:
        """The peak."""
        return self.state + self.buffers


def stage_memory(
    plan: Plan, profile: Profile, *, each: BytesPerParameter, replica: int | None = None
) -> tuple[StageMemory, ...]:
    """Return the peak memory of each rank of a replica, or of every one, under its schedule.

    Of a rank of several devices it is that of each of them, from above: all parameters count as
    divided, residuals as whole with tensor parallelism alone, else divided as well.

    Activations are the residuals of all microbatches that wait for their backward (`peak_live`),
    and for each of them its input message; the profile's `kept_bytes` include rematerialisation. On
    a rank with several chunks, all of them count as the largest. If the embedding is tied, the last
    stage has a copy of it.
    """
    pipeline = plan.pipelines[replica or 0]
    live = _live(plan, pipeline)
    profile = profile.scaled(microbatch=pipeline.microbatch)
    parts = [profile.stage(pipeline.cut, stage) for stage in range(pipeline.num_stages)]
    num_shards = plan.num_replicas if each.shards_optimizer else 1
    parameters = [part.parameters for part in parts]
    trained = [part.num_gradients for part in parts]
    replicated = [0] * pipeline.num_stages
    if plan.shares_embedding:
        replicated[0] = replicated[-1] = profile.embed.num_gradients
        if pipeline.num_stages > 1:
            # The last stage keeps a copy of a tied embedding.
            parameters[-1] += profile.embed.parameters
            trained[-1] += profile.embed.num_gradients
    updated = [
        whole_stage + -(-(total - whole_stage) // num_shards)
        for total, whole_stage in zip(trained, replicated, strict=True)
    ]

    def of_rank(number: int, degree: int) -> StageMemory:
        stages = pipeline.stages(number)
        # With data parallelism each device has everything but the residuals of others' samples.
        tensor = pipeline.tensor_parts[number]
        parts_of_model = 1 if plan.sharing is Sharing.DATA else tensor
        num_parameters = -(-sum(parameters[stage] for stage in stages) // parts_of_model)
        kept_bytes = max(parts[stage].kept_bytes for stage in stages)
        num_shares = degree // tensor if plan.sharing is Sharing.TENSOR else degree
        # The first stage reads samples, which are counted as an activation.
        messages = (profile.activation_bytes, *profile.message_bytes(pipeline.cut))
        message_bytes = max(messages[stage] for stage in stages)
        largest = max(trained[stage] for stage in stages)
        return StageMemory(
            parameters=num_parameters * each.parameter,
            gradients=-(-sum(trained[stage] for stage in stages) // parts_of_model) * each.gradient,
            optimizer=-(-sum(updated[stage] for stage in stages) // parts_of_model)
            * each.optimizer,
            activations=live[number] * (-(-kept_bytes // num_shares) + message_bytes),
            copies=num_parameters * each.copy,
            packed=-(-largest // parts_of_model) * each.gradient,
        )

    return tuple(of_rank(number, degree) for number, degree in enumerate(pipeline.degrees))


def _live(plan: Plan, pipeline: Pipeline) -> tuple[int, ...]:
    """Return how many microbatches each rank of a pipeline keeps at most."""
    if not isinstance(plan.schedule, ScheduleKind):
        return peak_live(plan.schedule)
    return peak_live_of_kind(
        plan.schedule,
        num_stages=pipeline.num_stages,
        num_microbatches=pipeline.num_microbatches,
        num_chunks=plan.num_chunks,
        warmup=pipeline.warmup,
    )


def live_limits(
    plan: Plan, profile: Profile, cluster: Cluster, *, each: BytesPerParameter
) -> tuple[int, ...]:
    """Return how many microbatches the devices of each rank of a pipeline can keep at once.

    A device of unknown memory can keep all; one too small for the parameters can keep none. With
    several chunks on a rank a microbatch counts once for each, as in `peak_live`, and all chunks
    count as the largest.
    """
    limits = []
    profile = profile.scaled(microbatch=plan.microbatch)
    for rank, memory in enumerate(stage_memory(plan, profile, each=each)):
        kept_bytes = max(profile.stage(plan.cut, stage).kept_bytes for stage in plan.stages(rank))
        one = kept_bytes + profile.activation_bytes
        groups = [pipeline.groups[rank] for pipeline in plan.pipelines]
        sizes = [cluster.devices[device].memory_bytes for group in groups for device in group]
        rooms = [
            # A profile may keep 0 bytes.
            (size - memory.state - memory.copies) // max(1, one)
            if size >= memory.state + memory.packed
            else 0
            for size in sizes
            if size is not None
        ]
        limits.append(max(0, min((plan.num_microbatches * plan.num_chunks, *rooms))))
    return tuple(limits)


def overfull(
    plan: Plan, profile: Profile, cluster: Cluster, *, each: BytesPerParameter
) -> dict[int, int]:
    """Return the devices that the plan does not fit, and by how many bytes it exceeds them.

    A device of unknown memory fits everything. All devices of a rank need as much.
    """
    # Once for replicas that are alike: a schedule is generated to know what lives when.
    needs: dict[tuple[object, ...], list[int]] = {}
    for replica, pipeline in enumerate(plan.pipelines):
        if pipeline.shape not in needs:
            memories = stage_memory(plan, profile, each=each, replica=replica)
            needs[pipeline.shape] = [memory.total for memory in memories]
    of_devices = (
        (device, need)
        for pipeline in plan.pipelines
        for group, need in zip(pipeline.groups, needs[pipeline.shape], strict=True)
        for device in group
    )
    excess = {}
    for device, need in of_devices:
        size = cluster.devices[device].memory_bytes
        if size is not None and need > size:
            excess[device] = need - size
    return excess
