"""A job: everything that defines a run, the same on all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxpipe.outer import OuterConfig, QuorumConfig, ServerLine
from jaxpipe.plan import Plan
from jaxpipe.runtime.checkpoint import checkpoint_place
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.config import (
    CheckpointConfig,
    CommConfig,
    TraceConfig,
    TrainConfig,
)
from jaxpipe.runtime.data import Mixture
from jaxpipe.runtime.data.order.position import SAMPLES, Position
from jaxpipe.runtime.metrics.records import METRICS_FILE
from jaxpipe.runtime.metrics.run_truth import RunTruth, truth_of
from jaxpipe.runtime.rank_mesh import MeshConfig, first_device, rank_mesh
from jaxpipe.runtime.run_config import RunConfig
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.mesh import ONE_DEVICE, Device, StageLayout, layout_over
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.optimizer_config import LossScaleConfig, OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.step.parameter_gather import optimizer_shards_of
from jaxpipe.runtime.storage.object_folder import Folder
from jaxpipe.schedule import Remat
from jaxpipe.topo import Cluster

_EVAL_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The model, its plan and its data, with all sections of the configuration.

    `loss_scale` is None if the loss is not scaled. `flops_per_token` counts the forward and the
    backward of the model without rematerialisation. `description`, configuration and versions, is
    saved with each checkpoint and with the metrics. `disks` says which ranks see the same run
    folder; None is one folder for all. `cluster` has the links that the plan is for; rank 0 alone
    needs it, for its reports of links, and has the `line` to a merge server. `position` is where
    training reads the first sample.
    """

    model: Model
    plan: Plan
    data: Mixture
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
    outer: OuterConfig = field(default_factory=OuterConfig)
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    line: ServerLine | None = None
    disks: Disks | None = None
    cluster: Cluster | None = None
    position: Position = field(default_factory=Position)

    def samples_read(self, step: int) -> int:
        """The number of samples that are read after `step` steps, by all islands of a server."""
        return self.position.first_sample(step, batch=self.drawn_batch)

    @property
    def drawn_batch(self) -> int:
        """The samples that are drawn for a step: those of this run, and of islands beside it."""
        return self.train.batch * (self.quorum.islands if self.quorum.is_on else 1)

    def description_at(self, step: int) -> dict[str, Any]:
        """The description that a checkpoint of `step` steps has, with the samples read."""
        return {**self.description, SAMPLES: self.samples_read(step)}

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.run.folder)

    def truth(self, environment: Mapping[str, str]) -> RunTruth:
        """The truth of this run's figures; the environment may say that links are emulated."""
        plan = self.description.get("config", {}).get("plan", {})
        return truth_of(self.run, environment, cluster=plan.get("cluster", "of the plan"))

    @property
    def checkpoints(self) -> Folder:
        """Where the checkpoints of the run are: its folder, or object storage."""
        return checkpoint_place(self.folder, self.checkpoint.folder)

    @property
    def has_own_checkpoints(self) -> bool:
        """Whether each host has a part of the checkpoints, on a disk of its own."""
        is_apart = self.disks is not None and not self.disks.is_shared
        return is_apart and self.checkpoint.folder is None

    @property
    def save_timeout_s(self) -> float:
        """The time that one message of a save may take, and the wait for a save under way.

        Copies and uploads cross slow links while other ranks wait: longer than a step.
        """
        is_near = self.checkpoint.folder is None and not self.has_own_checkpoints
        return max(self.run.timeout_s, 0.0 if is_near else self.run.startup_timeout_s)

    @property
    def metrics_file(self) -> Path:
        """The file of the metrics, in JSON lines."""
        return self.folder / METRICS_FILE

    @property
    def sequence(self) -> int:
        """The length of a sample, in tokens."""
        return self.train.sequence or self.model.sequence

    @property
    def tokens_per_step(self) -> int:
        """The number of tokens of a step, over all replicas; of pictures, of positions."""
        return self.train.batch * self.sequence

    def layout(self, devices: Sequence[Device], *, rank: int) -> StageLayout:
        """Return the layout of the stages of a rank over the devices of its process.

        Raises:
            ConfigError: there are fewer devices than the mesh needs.
        """
        mesh = rank_mesh(self.plan, self.mesh, rank=rank)
        first = first_device(self.plan, self.mesh, rank=rank, num_devices=len(devices))
        return layout_over(devices[first:], mesh, split=self.model.split)

    def functions(
        self, *, stage: int, rank: int = 0, layout: StageLayout = ONE_DEVICE
    ) -> StageFunctions:
        """Return the functions of a stage of a rank; replicas that are alike have equal ones.

        A `rank` has its own shards of a sharded optimizer, and a `layout` over its devices.
        """
        plan, replica, is_sharded = self.plan, self.plan.replica(rank), self.optimizer.sharded
        return StageFunctions(
            stage=Stage(
                model=self.model,
                index=stage,
                num_stages=plan.pipelines[replica].num_stages,
                layers=plan.layers(stage, replica=replica),
                remat=self.plan.remat or self.train.remat or Remat.NONE,
                loop=self.train.loop,
                segments=plan.segment_layers(replica=replica, stage=stage),
                shares_embedding=plan.shares_embedding,
                layout=layout,
            ),
            work=self._work(microbatch=plan.pipelines[replica].microbatch),
            optimizer=self.optimizer,
            scales_loss=self.loss_scale is not None,
            masked=self.data.masked,
            shards=optimizer_shards_of(plan, rank=rank, stage=stage) if is_sharded else (),
        )

    @property
    def num_eval_batches(self) -> int:
        """The batches of a held-out loss: as configured, else 4, or as many as there are.

        Raises:
            DataError: not one batch is held out.
        """
        if self.train.eval_batches is not None:
            return self.train.eval_batches
        return min(_EVAL_BATCHES, self.data.num_eval_batches(batch=self.train.batch))

    def _work(self, *, microbatch: int) -> Work:
        return Work(
            microbatch=microbatch,
            sequence=self.sequence,
            batch=self.train.batch,
            num_steps=self.train.steps,
            seed=self.run.seed,
            labelled=self.data.labelled_input,
            packed=self.data.packed,
        )
