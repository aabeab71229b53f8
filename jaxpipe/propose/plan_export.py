"""A plan in the settings of other systems that train by pipeline: files that they read.

=========== ======================================================= ========================
system      files                                                   schedules that it has
=========== ======================================================= ========================
torch-csv   `.csv`, for `torch.distributed.pipelining`              any
torchtitan  `.torchtitan.args`, options of the command line, and    any
            the `.csv`
megatron    `.megatron.args`, options of the command line           1F1B, interleaved 1F1B
deepspeed   `.deepspeed.json`, and `.deepspeed-parts.json`, what    1F1B
            `PipelineModule.parts` is: the first layer of each
            stage, counting the embedding and the head as layers
=========== ======================================================= ========================

Beside them, `.ranks.txt` has the device of each rank in the order of these systems, which number
the ranks of a stage one after the other, where jaxpipe numbers those of a replica::

                stage 0  stage 1                stage 0  stage 1
    replica 0   0        1          replica 0   0        2
    replica 1   2        3          replica 1   1        3
    jaxpipe                         the others
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from jaxpipe.collective import CodecKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, Sharing
from jaxpipe.propose.options import TrainingSystem
from jaxpipe.schedule import ScheduleKind, schedule_text
from jaxpipe.schedule.remat import Remat

SCHEDULES: Mapping[TrainingSystem, tuple[ScheduleKind, ...]] = MappingProxyType(
    {
        TrainingSystem.MEGATRON: (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED),
        TrainingSystem.DEEPSPEED: (ScheduleKind.ONE_F_ONE_B,),
    }
)
"""The schedules of a system that does not run any that it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A plan to export; `sequence` in tokens, `csv_name` is that of the schedule file."""

    plan: Plan
    sequence: int
    csv_name: str

    @property
    def tensor_degree(self) -> int:
        return len(self.plan.groups[0])

    @property
    def replica_batch(self) -> int:
        return self.plan.microbatch * self.plan.num_microbatches

    @property
    def batch(self) -> int:
        return self.replica_batch * self.plan.num_replicas

    @property
    def recomputes(self) -> bool:
        return self.plan.remat not in (None, Remat.NONE)


def export_plan(
    plan: Plan,
    system: TrainingSystem,
    *,
    sequence: int,
    devices: Sequence[str],
    csv_name: str = "plan.csv",
) -> dict[str, str]:
    """Return the text of each file for a system, by the ending of its name.

    `sequence` is in tokens, `devices[number]` the name of a device of the cluster, and `csv_name`
    what the settings of torchtitan call the schedule file.

    Raises:
        PlanError: the system cannot do what the plan says; it names the field and the fix.
    """
    _check(plan, system)
    files = _WRITERS[system](_Work(plan=plan, sequence=sequence, csv_name=csv_name))
    ranks = "".join(f"{devices[number]}\n" for number in _devices_by_rank(plan))
    return {**files, ".ranks.txt": ranks}


def _check(plan: Plan, system: TrainingSystem) -> None:
    def refuse(field: str, value: object, fix: str) -> PlanError:
        return PlanError(f"`{field}` is {value}, which {system} does not have; {fix}")

    if not plan.is_even:
        raise refuse("replica", "unlike another", "set `plan.stages` and `plan.replicas`")
    if plan.has_data_parts or plan.sharing not in (Sharing.TENSOR, Sharing.SEQUENCE):
        value = "data parts" if plan.has_data_parts else plan.sharing
        raise refuse("sharing", value, "plan with `--max-tensor 1`, or set plan.sharing=tensor")
    sizes = {len(group) for group in plan.groups}
    if len(sizes) > 1 or (system is TrainingSystem.DEEPSPEED and sizes != {1}):
        value = f"ranks of {' and '.join(map(str, sorted(sizes)))} devices"
        raise refuse("placement", value, "plan with `--max-tensor 1`")
    codecs = {codec for pipeline in plan.pipelines for codec in pipeline.codecs}
    if codecs - {CodecKind.NONE}:
        names = ", ".join(sorted(codecs - {CodecKind.NONE}))
        raise refuse("codecs", names, "plan without `plan.codecs`")
    schedules = SCHEDULES.get(system)
    if schedules is not None and plan.schedule not in schedules:
        choices = " or ".join(schedules)
        raise refuse("schedule", plan.schedule_name, f"set plan.schedule={choices}")


def _devices_by_rank(plan: Plan) -> list[int]:
    """Return the devices in the order of ranks elsewhere: by stage, then replica, then group."""
    replicas = [pipeline.groups for pipeline in plan.pipelines]
    return [device for of_stage in zip(*replicas, strict=True) for g in of_stage for device in g]


def _torch_csv(work: _Work) -> dict[str, str]:
    return {".csv": schedule_text(work.plan.compute_schedule())}


def _torchtitan(work: _Work) -> dict[str, str]:
    """Return options; names of modules are those of its Llama 3."""
    plan = work.plan
    ends = list(accumulate(plan.cut))
    names = [
        [f"layers.{layer}" for layer in range(end - size, end)]
        for end, size in zip(ends, plan.cut, strict=True)
    ]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    options = {
        "parallelism.pipeline_parallel_degree": plan.num_pipeline_ranks,
        # The file decides what a rank runs; this says only which stages are whose.
        "parallelism.pipeline_parallel_schedule": (
            "1F1B" if plan.num_chunks == 1 else "Interleaved1F1B"
        ),
        "parallelism.pipeline_parallel_schedule_csv": shlex.quote(work.csv_name),
        "parallelism.pipeline_parallel_microbatch_size": plan.microbatch,
        "parallelism.data_parallel_replicate_degree": plan.num_replicas,
        "parallelism.data_parallel_shard_degree": 1,
        "parallelism.tensor_parallel_degree": work.tensor_degree,
        "parallelism.module_fqns_per_model_part": " ".join(map(",".join, names)),
        "training.local_batch_size": work.replica_batch,
        "training.global_batch_size": work.batch,
        "training.seq_len": work.sequence,
    }
    lines = [
        *(f"--{name} {value}" for name, value in options.items()),
        "--training.disable_cuda_graphs",  # it refuses them with a pipeline
        # A word of its own, behind all options.
        f"activation-checkpoint:{'full' if work.recomputes else 'none'}",
    ]
    return {".torchtitan.args": "\n".join(lines) + "\n", **_torch_csv(work)}


def _megatron(work: _Work) -> dict[str, str]:
    """Return options; in the layout E is the embedding, t a transformer layer, L the head."""
    plan = work.plan
    stages = [f"t*{size}" if size else "" for size in plan.cut]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    options = {
        "num-layers": sum(plan.cut),
        "pipeline-model-parallel-size": plan.num_pipeline_ranks,
        "pipeline-model-parallel-layout": f'"{"|".join(stages)}"',
        "tensor-model-parallel-size": work.tensor_degree,
        "micro-batch-size": plan.microbatch,
        "global-batch-size": work.batch,
        "seq-length": work.sequence,
    }
    lines = [f"--{name} {value}" for name, value in options.items()]
    if plan.sharing is Sharing.SEQUENCE:
        lines.append("--sequence-parallel")
    if not plan.tied:
        lines.append("--untie-embeddings-and-output-weights")
    if work.recomputes:
        lines.append("--recompute-granularity full --recompute-method uniform")
        lines.append("--recompute-num-layers 1")
    return {".megatron.args": "\n".join(lines) + "\n"}


def _deepspeed(work: _Work) -> dict[str, str]:
    plan = work.plan
    config = {
        "train_batch_size": work.batch,
        "train_micro_batch_size_per_gpu": plan.microbatch,
        "gradient_accumulation_steps": plan.num_microbatches,
        "pipeline": {
            "stages": plan.num_stages,
            "activation_checkpoint_interval": int(work.recomputes),
        },
    }
    # The embedding is layer 0, so every later stage begins one layer further on.
    starts = [end + 1 for end in accumulate(plan.cut)]
    parts = [0, *starts[:-1], starts[-1] + 1]
    return {
        ".deepspeed.json": json.dumps(config, indent=2) + "\n",
        ".deepspeed-parts.json": json.dumps(parts) + "\n",
    }


_WRITERS: Mapping[TrainingSystem, Callable[[_Work], dict[str, str]]] = MappingProxyType(
    {
        TrainingSystem.TORCH_CSV: _torch_csv,
        TrainingSystem.TORCHTITAN: _torchtitan,
        TrainingSystem.MEGATRON: _megatron,
        TrainingSystem.DEEPSPEED: _deepspeed,
    }
)
