"""The memory that each rank of a configured run needs, against that of its device.

An estimate, from the configuration alone: parameters, gradients, moments, and the residuals of the
microbatches that wait for their backward. What libraries and XLA's temporaries take is not in it.

Of a rank with a mesh, it is the memory of one device: `tensor` divides kernels, tables and the
residuals behind them, with `sequence_parallel` all residuals; `data` divides the samples of all
residuals, `context` their tokens, and with `sharded` both divide the parameters as well. Every
device holds the rest, and the messages between stages, whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from jaxpipe.config import Config, is_tuned
from jaxpipe.errors import PlanError
from jaxpipe.models import ModelConfig, layer_residual_bytes_of_part, parameters_of_part
from jaxpipe.plan import Pipeline, Plan
from jaxpipe.plan.cost import BytesPerParameter, StageMemory, stage_memory
from jaxpipe.propose.gpt_profile import bytes_each, gpt_profile
from jaxpipe.runtime.rank_mesh import MeshConfig, rank_mesh
from jaxpipe.schedule import Remat
from jaxpipe.topo import Cluster, Device
from jaxpipe.topo.this_machine import is_this_machine

if TYPE_CHECKING:  # it imports jax, for which the memory of other runs need not wait
    from jaxpipe.run.forecast.tuned_memory import TunedMemory

_FEW = 4
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What the ranks of one place in the pipeline hold, one of each replica, and their devices.

    `num_parameters` are those of a rank, `needs` the memory of each of its devices, of which
    `devices` has the smallest.
    """

    ranks: tuple[int, ...]
    mesh: MeshConfig
    stages: tuple[int, ...]
    num_parameters: int
    needs: StageMemory
    devices: tuple[Device, ...]

    @property
    def room_bytes(self) -> float:
        """The memory of the smallest device; infinity if none is known."""
        return min(device.memory_bytes or inf for device in self.devices)


def plan_memory(config: Config, plan: Plan, cluster: Cluster) -> tuple[RankMemory, ...]:
    """Return the memory of the ranks of each place in the pipeline."""
    sequence = config.train.sequence or config.model.sequence
    model = replace(config.model, sequence=sequence)
    per_parameter = bytes_each(model, config.optimizer)
    # The speed has no part in it.
    profile = gpt_profile(model, remat=plan.remat or Remat.NONE, flops_per_s=1.0)
    tuned = _tuned(config)
    # Of whole ranks: how their devices share is exact below, where the model is known.
    alone = plan.on_devices(plan.placement)

    def of_rank(replica: int | None, number: int, ranks: tuple[int, ...]) -> RankMemory:
        pipeline = plan.pipelines[replica or 0]
        mesh = rank_mesh(plan, config.mesh, rank=ranks[0])
        whole = needs = stage_memory(alone, profile, each=per_parameter, replica=replica)[number]
        if mesh.num_devices > 1:
            layer = replace(profile.layers[0], kept_bytes=_kept_bytes(plan, model, mesh))
            part = replace(profile, layers=(layer,) * len(profile.layers))
            needs = stage_memory(alone, part, each=per_parameter, replica=replica)[number]
            needs = _with_parameters(
                needs, _parameters(model, pipeline, number, mesh), per_parameter
            )
        if tuned is not None:
            count = whole.parameters // per_parameter.parameter
            needs = tuned.of_rank(needs, pipeline, number, num_parameters=count)
        return RankMemory(
            ranks=ranks,
            mesh=mesh,
            stages=tuple(pipeline.stages(number)),
            num_parameters=whole.parameters // per_parameter.parameter,
            needs=needs,
            devices=tuple(_smallest(plan.group(rank), cluster) for rank in ranks),
        )

    return tuple(of_rank(*place) for place in _places(plan))


def _tuned(config: Config) -> "TunedMemory | None":
    if not is_tuned(config):
        return None
    from jaxpipe.run.forecast.tuned_memory import tuned_memory

    return tuned_memory(config)


def _places(plan: Plan) -> Iterator[tuple[int | None, int, tuple[int, ...]]]:
    """Yield the ranks that have equal needs, with their replica, None for all, and their number."""
    if not plan.is_even:
        for rank in range(plan.num_ranks):
            yield plan.replica(rank), plan.number(rank), (rank,)
        return
    size = plan.num_pipeline_ranks
    for number in range(size):
        yield None, number, tuple(range(number, plan.num_ranks, size))


def _smallest(group: tuple[int, ...], cluster: Cluster) -> Device:
    return min((cluster.devices[device] for device in group), key=lambda d: d.memory_bytes or inf)


def _kept_bytes(plan: Plan, model: ModelConfig, mesh: MeshConfig) -> float:
    """Return the bytes that a device of a mesh keeps of a layer's residuals, per sample."""
    kept = layer_residual_bytes_of_part(
        model,
        batch=1,
        sequence=model.sequence,
        tensor=mesh.tensor,
        in_parts=mesh.sequence_parallel,
    )
    return getattr(kept, plan.remat or Remat.NONE) / (mesh.data * mesh.context)


def _parameters(model: ModelConfig, pipeline: Pipeline, number: int, mesh: MeshConfig) -> int:
    """Return the parameters that a device of a mesh holds of the stages of its rank."""
    num_parameters = sum(
        parameters_of_part(
            model,
            layers=pipeline.cut[stage],
            embed=stage == 0,
            head=stage == pipeline.num_stages - 1,
            tensor=mesh.tensor,
        )
        for stage in pipeline.stages(number)
    )
    # Each array whose dims the parts divide is split, and arrays that they do not divide are few.
    return -(-num_parameters // (mesh.data * mesh.context)) if mesh.sharded else num_parameters


def _with_parameters(needs: StageMemory, number: int, each: BytesPerParameter) -> StageMemory:
    return replace(
        needs,
        parameters=number * each.parameter,
        gradients=number * each.gradient,
        optimizer=number * each.optimizer,
        copies=number * each.copy,
        packed=number * each.gradient,
    )


def memory_lines(memory: Sequence[RankMemory], *, shared_room: int | None = None) -> Iterator[str]:
    """Yield a table of the ranks: their parameters, what they need and what their devices have.

    Of cores, the last line has the bytes that they share.
    """
    shared = " and".join(filter(None, dict.fromkeys(of_mesh(each.mesh) for each in memory)))
    yield f"memory{shared} (estimated, without the temporaries of XLA)"
    for each in memory:
        few = ", ".join(map(str, each.ranks[:_FEW])) + (", ..." if len(each.ranks) > _FEW else "")
        ranks = f"{'rank' if len(each.ranks) == 1 else 'ranks'} {few}"
        stages = f"stage {', '.join(map(str, each.stages))}"
        state, buffers = each.needs.state, each.needs.buffers
        room = "unknown" if each.room_bytes == inf else _size(each.room_bytes)
        of_room = f" of {room}" if shared_room is None else ""
        yield (
            f"{ranks:<16}{stages:<12}{each.num_parameters / 1e6:>9,.2f} M parameters   "
            f"state {_size(state):>9} + buffers {_size(buffers):>9} = "
            f"{_size(each.needs.total):>9}{of_room}"
        )
    if shared_room is not None:
        needed = sum(len(part.ranks) * part.needs.total for part in memory)
        yield f"all ranks need {_size(needed)} of the {_size(shared_room)} that cores share"
    unknown = sum(device.memory_bytes is None for each in memory for device in each.devices)
    if unknown:
        yield f"not checked on {unknown} devices of unknown memory: add `memory_gib` to their hosts"


def of_mesh(mesh: MeshConfig) -> str:
    """Return whose memory it is, where a rank has several devices.

    >>> of_mesh(MeshConfig(data=2, tensor=4))
    ' of each of the 8 devices of a rank, data 2 x tensor 4'
    """
    if mesh.num_devices == 1:
        return ""
    axes = {"data": mesh.data, "context": mesh.context, "tensor": mesh.tensor}
    shape = " x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1)
    kinds = {"sharded": mesh.sharded, "sequence parallel": mesh.sequence_parallel}
    words = ", ".join([shape, *(kind for kind, is_on in kinds.items() if is_on)])
    return f" of each of the {mesh.num_devices} devices of a rank, {words}"


def shared_bytes(cluster: Cluster) -> int | None:
    """Return the memory that the cores of this machine share; None for other devices."""
    sizes = [device.memory_bytes for device in cluster.devices if device.gpu is None]
    if not is_this_machine(cluster.name) or len(sizes) < len(cluster) or None in sizes:
        return None
    return sum(filter(None, sizes))


def check_memory(memory: Sequence[RankMemory], *, shared_room: int | None = None) -> None:
    """Check that every rank fits into its device; one of unknown memory fits everything.

    Cores have no memory of their own: all ranks together have to fit into the `shared_room`.

    Raises:
        PlanError: a rank does not fit.
    """
    fix = 'raise `plan.stages`, lower `plan.microbatch`, or set `train.remat` to "full"'
    if shared_room is not None:
        needed = sum(len(row.ranks) * row.needs.total for row in memory)
        if needed > shared_room:
            raise PlanError(
                f"`memory_gib` of this machine ({_size(shared_room)}) must be at least what all "
                f"ranks need together, {_size(needed)} (estimated); {fix}"
            )
        return
    for row in memory:
        if row.needs.total > row.room_bytes:
            sizes = [device.memory_bytes for device in row.devices]
            number = sizes.index(int(row.room_bytes))
            raise PlanError(
                f"`memory_gib` of {row.devices[number].name!r} ({_size(row.room_bytes)}) must be "
                f"at least what rank {row.ranks[number]} needs on a device, "
                f"{_size(row.needs.total)} (estimated); {fix}"
            )


def _size(num_bytes: float) -> str:
    unit, name = (_GIB, "GiB") if num_bytes >= _GIB else (_MIB, "MiB")
    return f"{num_bytes / unit:,.4g} {name}"
