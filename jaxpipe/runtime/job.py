"""A job: everything that all ranks of a run know before they start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe.plan import Plan
from jaxpipe.runtime.config import (
    CheckpointConfig,
    CommConfig,
    LossScaleConfig,
    MeshConfig,
    OptimizerConfig,
    RunConfig,
    TraceConfig,
    TrainConfig,
)
from jaxpipe.runtime.data import Dataset
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.mesh import Device, Layout, layout_over
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.step.parameter_gather import optimizer_shard_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, how, by whom.

    `loss_scale` is None where the loss is not scaled. `flops_per_token` counts the forward and
    backward of the model without rematerialisation; `description` is saved with each checkpoint and
    with the metrics: configuration and versions.
    """

    model: Model
    plan: Plan
    dataset: Dataset
    run: RunConfig
    train: TrainConfig
    comm: CommConfig
    mesh: MeshConfig
    optimizer: OptimizerConfig
    loss_scale: LossScaleConfig | None
    checkpoint: CheckpointConfig
    trace: TraceConfig
    flops_per_token: float
    rank_names: tuple[str, ...]
    description: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return Path(self.run.folder)

    @property
    def metrics_file(self) -> Path:
        """The JSON lines of the run."""
        return self.folder / "metrics.jsonl"

    @property
    def sequence(self) -> int:
        """The length of a sample in tokens."""
        return self.train.sequence or self.model.sequence

    @property
    def tokens_per_step(self) -> int:
        """How many tokens a step trains on."""
        return self.train.batch * self.sequence

    def layout(self, devices: Sequence[Device]) -> Layout:
        """Return how the devices of a rank share its stages.

        Raises:
            ConfigError: they are too few for the mesh.
        """
        return layout_over(devices, self.mesh, split=self.model.split)

    def functions(self, *, stage: int, rank: int = 0) -> StageFunctions:
        """Return what a rank that holds this stage computes.

        Which rank it is matters where the optimizer is sharded.
        """
        is_sharded = self.optimizer.sharded
        return StageFunctions(
            stage=Stage(
                model=self.model,
                index=stage,
                num_stages=self.plan.num_stages,
                layers=self.plan.layers(stage),
                remat=self.train.remat,
                loop=self.train.loop,
            ),
            work=Work(
                microbatch=self.plan.microbatch,
                sequence=self.sequence,
                batch=self.train.batch,
                num_steps=self.train.steps,
                seed=self.run.seed,
            ),
            optimizer=self.optimizer,
            scales_loss=self.loss_scale is not None,
            share=optimizer_shard_of(self.plan, rank=rank, stage=stage) if is_sharded else None,
        )
