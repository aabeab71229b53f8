"""What steers a run: the sections of the configuration that the runtime owns.

It imports no jax, so that a configuration is checked before anything slow begins.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

from jaxpipe.collective import CodecKind

_LONGEST_WAIT_S = 1e9
"""Thirty years; far longer waits are more than clocks can count."""
_LONGEST_PATH = 4000
_LONGEST_NAME = 255
"""Of a file, in bytes: what most file systems take."""


class Remat(StrEnum):
    """Rematerialisation: what a stage keeps of each layer's forward for its backward."""

    NONE = "none"
    """Everything that the backward reads: the most memory, the least work."""
    DOTS = "dots"
    """The results of matrix products with weights, and the attention output; recompute the rest."""
    FULL = "full"
    """Only the input of the layer: the least memory, one more forward."""


class Loop(StrEnum):
    """How a stage iterates over its layers."""

    SCAN = "scan"
    """One body for all layers: compiles as fast as one layer, but copies the residuals."""
    UNROLLED = "unrolled"
    """One body per layer: slower to compile, and parameters are unstacked once a step."""


class TransportKind(StrEnum):
    """How messages travel between ranks."""

    MPI = "mpi"
    """Over MPI, from host memory to host memory."""
    NCCL = "nccl"
    """Activations from GPU to GPU over NCCL, the rest over MPI; without a GPU, MPI with a warning.

    Not run on a GPU yet.
    """
    SHAPED = "shaped"
    """Over MPI, delayed as the links of the plan's cluster would delay each message: emulated."""


class ComputeKind(StrEnum):
    """Whether stage functions compute."""

    REAL = "real"
    """It computes."""
    PACED = "paced"
    """It waits for as long as it would take on the cluster's devices, over emulated links. No model
    is trained, so a model of any size runs on any machine (`jaxpipe.paced`)."""


class TrackerKind(StrEnum):
    """Experiment trackers, in addition to `metrics.jsonl` (`jaxpipe.runtime.metrics.trackers`).

    Each is an extra of this name. A tracker that fails is reported once; training continues.
    """

    TENSORBOARD = "tensorboard"
    """TensorBoard event files, in the folder `tensorboard` of the run."""
    TRACKIO = "trackio"
    """trackio, local or as configured by its environment variables."""
    WANDB = "wandb"
    """Weights & Biases; respects `WANDB_MODE`."""


class Survival(StrEnum):
    """What happens to a job that loses a rank."""

    RESTART = "restart"
    """The job ends; `jaxpipe run` restarts it."""
    SHRINK = "shrink"
    """The remaining ranks continue in the same job with a smaller plan; needs Open MPI (ULFM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run lives, how its messages travel, and how long its ranks wait for each other.

    With `survive = "shrink"`, the remaining ranks take the state of a lost stage from its replica;
    with `optimizer.sharded`, or without a replica, all ranks restart from the newest checkpoint.
    """

    folder: str
    """Folder of the run: metrics, checkpoints, trace and picture."""
    seed: int = 0
    """Seed of the parameters, the order of the samples and dropout."""
    timeout_s: float = 120.0
    """Deadline of every wait within a step [s]."""
    startup_timeout_s: float = 900.0
    """Deadline for the slowest rank to start and to compile its stage [s]."""
    hang_s: float = 2.0
    """A rank hangs if one instruction takes longer than this [s] and than five times what 99 % of
    such instructions have taken; the watchdog then ends the job."""
    transport: TransportKind = TransportKind.MPI
    """How messages travel between ranks."""
    link_scale: float = 1.0
    """Factor on the latency and the seconds per byte of all links; for the transport `shaped` only.
    """
    compute: ComputeKind = ComputeKind.REAL
    """Whether stage functions compute, or wait for as long as they would take."""
    trackers: tuple[TrackerKind, ...] = ()
    """Where rank 0 sends the metrics of every step, in addition to `metrics.jsonl`."""
    project: str = "jaxpipe"
    """Project under which trackio and W&B file the run."""
    survive: Survival = Survival.RESTART
    """What happens to the job when a rank is lost."""
    recover_s: float = 120.0
    """With `survive = "shrink"`, the deadline for the remaining ranks to train again, compilation
    included [s]; after it the job ends as with `restart`."""

    def __post_init__(self) -> None:
        times = ("timeout_s", "startup_timeout_s", "hang_s", "link_scale", "recover_s")
        _check(self, above_zero=times, not_negative=("seed",))
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError(
                f"each tracker is told once: `trackers` is {', '.join(self.trackers)}; name each "
                "once"
            )
        for name in ("timeout_s", "startup_timeout_s", "hang_s", "recover_s"):
            if getattr(self, name) > _LONGEST_WAIT_S:
                raise ValueError(
                    f"`{name}` must be at most {_LONGEST_WAIT_S:.0e}, is {getattr(self, name)}"
                )
        check_path("folder", self.folder)
        is_plain = self.transport is TransportKind.MPI and self.compute is ComputeKind.REAL
        if self.survive is Survival.SHRINK and not is_plain:
            raise ValueError(
                f"ranks shrink over MPI alone, where they compute: `survive` is {self.survive}, "
                f"`transport` {self.transport}, `compute` {self.compute}; leave out the others, or "
                f"set `survive` to {Survival.RESTART}"
            )
        if self.link_scale != 1 and self.transport is not TransportKind.SHAPED:
            raise ValueError(
                f"only emulated links have a scale: `link_scale` is {self.link_scale}, `transport` "
                f"{self.transport}; set it to {TransportKind.SHAPED}, or leave out `link_scale`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedConfig:
    """How a run with `run.compute = "paced"` scales messages and time, and times its computes."""

    message_scale: float | None = None
    """Fraction of its bytes that each message carries, over links slowed down by the same factor.
    Default: such that the largest message has 2 KiB."""
    time_scale: float = 1.0
    """Seconds of real time per emulated second; raise it on a busy machine."""
    profile: str | None = None
    """File written by `jaxpipe profile`: measured seconds per layer. Default: FLOPs are counted."""
    tflops: float | None = None
    """Speed of the devices whose speed the cluster file does not give [TFLOP/s]."""
    ideal: bool = False
    """Take links as the cluster file states them, without the TCP overheads fitted to DT-FM's runs.
    """

    def __post_init__(self) -> None:
        given = [name for name in ("message_scale", "tflops") if getattr(self, name) is not None]
        _check(self, above_zero=("time_scale", *given))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which prepared dataset to train on."""

    folder: str
    """Folder written by `jaxpipe data prepare`."""

    def __post_init__(self) -> None:
        check_path("folder", self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How much work a run does, and how often it reports.

    The held-out loss is measured after the first step, every `eval_every` steps, and after the
    last.
    """

    steps: int = 100
    """Length of the run [steps]."""
    batch: int = 16
    """Global batch: samples per step over all replicas [samples]."""
    sequence: int | None = None
    """Length of a sample [tokens]. Default: the model's."""
    remat: Remat = Remat.NONE
    """What a stage keeps of each layer's forward."""
    loop: Loop = Loop.UNROLLED
    """How a stage iterates over its layers."""
    log_every: int = 10
    """Interval between lines of progress [steps]."""
    eval_every: int = 50
    """Interval between measurements of the held-out loss [steps]."""
    eval_batches: int = 4
    """Size of a measurement of the held-out loss [batches]."""

    def __post_init__(self) -> None:
        _check(
            self,
            above_zero=("steps", "batch", "log_every", "eval_every", "eval_batches"),
        )
        if self.sequence is not None and self.sequence < 1:
            raise ValueError(f"`sequence` must be at least 1, is {self.sequence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """The local devices of each rank: a mesh of `data` x `tensor` (`jaxpipe.runtime.stage.mesh`).

    A rank uses the first `data` x `tensor` devices that it sees. A token table whose rows `tensor`
    does not divide is replicated.
    """

    data: int = 1
    """Parts of each microbatch, one per device [devices]; divides `plan.microbatch`."""
    tensor: int = 1
    """Parts of each layer, Megatron-style [devices]; divides the attention heads."""

    def __post_init__(self) -> None:
        _check(self, above_zero=("data", "tensor"))

    @property
    def num_devices(self) -> int:
        """How many devices a rank uses."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).

    The learning rate rises linearly to `learning_rate` and then falls along a cosine.
    """

    learning_rate: float = 1e-3
    """Peak learning rate."""
    warmup_steps: int = 20
    """Length of the linear warm-up [steps]."""
    final_fraction: float = 0.1
    """Learning rate of the last step, as a fraction of the peak."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled weight decay; applies to matrices only."""
    clip_norm: float = 1.0
    """Largest global norm of the gradients, taken over all stages."""
    sharded: bool = False
    """ZeRO-1: each replica of a stage holds the moments of an equal shard of its parameters,
    updates that shard, and all-gathers the others. Less memory, more messages, the same losses up
    to rounding."""

    def __post_init__(self) -> None:
        _check(
            self,
            above_zero=("learning_rate", "epsilon", "clip_norm"),
            not_negative=("warmup_steps", "final_fraction", "weight_decay", "beta1", "beta2"),
        )
        for name in ("beta1", "beta2"):
            if not getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be below 1, is {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """Dynamic loss scale for float16 gradients (`jaxpipe.runtime.stage.loss_scale`).

    A step whose gradients overflow changes nothing and divides the scale by `factor`, but never
    below 1. Powers of two change no bit of float32 results.
    """

    enabled: bool | None = None
    """Whether the loss is scaled. Default: only if `model.compute_dtype` is float16."""
    initial: float = 2.0**16
    """Scale of the first step."""
    factor: float = 2.0
    """What an overflow divides the scale by, and `growth_steps` good steps multiply it by."""
    growth_steps: int = 2000
    """Steps in a row without overflow before the scale grows [steps]."""
    largest: float = 2.0**24
    """Upper bound of the scale."""

    def __post_init__(self) -> None:
        _check(self, above_zero=("growth_steps",))
        if not self.factor > 1:
            raise ValueError(f"`factor` must be above 1, is {self.factor}")
        if not 1 <= self.initial <= self.largest:
            raise ValueError(
                f"`initial` must be from 1 to `largest`, {self.largest}, is {self.initial}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommConfig:
    """Compression of messages between ranks, and their size.

    Gradients inside an island are never compressed; losses and norms are always exact. What top-k
    has left out so far is not part of a checkpoint.
    """

    boundary: CodecKind = CodecKind.NONE
    """Codec of activations and their gradients between stages; any but `top_k`."""
    gradients: CodecKind = CodecKind.NONE
    """Codec of the gradients that cross the root of a sync tree; only `hierarchical` all-reduces
    have one."""
    top_k_fraction: float = 0.01
    """Fraction of the values of each message that `top_k` sends: the largest ones. The rest is
    added to the gradients of the next step (error feedback)."""
    chunk_bytes: int = 2**20
    """Largest message of an all-reduce, before compression [bytes]."""

    def __post_init__(self) -> None:
        _check(self, above_zero=("chunk_bytes",))
        if self.boundary is CodecKind.TOP_K:
            raise ValueError(
                "an activation left out is lost, with nothing to make up for it: `boundary` must "
                "not be top_k; use bf16, int8 or fp8, or top_k for `gradients`"
            )
        if not 0 < self.top_k_fraction <= 1:
            raise ValueError(
                f"`top_k_fraction` must be above 0 and at most 1, is {self.top_k_fraction}"
            )

    @property
    def feeds_back(self) -> bool:
        """Whether what the codec of gradients loses is added to what it encodes next."""
        return self.gradients is CodecKind.TOP_K


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    every: int = 100
    """Interval between checkpoints [steps]; the last step always writes one."""
    keep: int = 2
    """Number of checkpoints that stay on disk."""

    def __post_init__(self) -> None:
        _check(self, above_zero=("every", "keep"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What the trace of a run records."""

    steps: int = 3
    """The last steps of the run that the trace holds [steps]."""

    def __post_init__(self) -> None:
        _check(self, above_zero=("steps",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """The sample that the trained model writes when a run ends."""

    prompt: str = "The "
    """Text that the model continues."""
    tokens: int = 200
    """Length of the continuation [tokens]."""
    temperature: float = 0.8
    """0 always takes the most likely token; 1 samples from the model's distribution."""

    def __post_init__(self) -> None:
        _check(self, not_negative=("tokens", "temperature"))


def _check(
    section: Any, *, above_zero: tuple[str, ...] = (), not_negative: tuple[str, ...] = ()
) -> None:
    for name in above_zero:
        if not getattr(section, name) > 0:
            raise ValueError(f"`{name}` must be above 0, is {getattr(section, name)}")
    for name in not_negative:
        if not getattr(section, name) >= 0:
            raise ValueError(f"`{name}` must not be negative, is {getattr(section, name)}")
    for name in (*above_zero, *not_negative):
        if getattr(section, name) == inf:
            raise ValueError(f"`{name}` must be finite, is {getattr(section, name)}")


def check_path(name: str, path: str) -> None:
    """Check that a text can be the path of a file or a folder.

    Raises:
        ValueError: it is empty, too long, or holds a character that no path may.
    """
    parts = path.encode(errors="surrogateescape").split(b"/")
    if (
        not path
        or "\0" in path
        or len(path) > _LONGEST_PATH
        or max(map(len, parts)) > _LONGEST_NAME
    ):
        raise ValueError(
            f"`{name}` must be a path of 1 to {_LONGEST_PATH} characters, {_LONGEST_NAME} bytes "
            f"between slashes and no NUL, is {path!r:.80}"
        )
