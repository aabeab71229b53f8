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
    """What a stage keeps of each layer's forward; its backward computes the rest again."""

    NONE = "none"
    """Everything that the backward reads: the most memory, the least work."""
    DOTS = "dots"
    """The results of matrix products with weights, and the attention output."""
    FULL = "full"
    """The input of the layer alone: the least memory, one more forward."""


class Loop(StrEnum):
    """How a stage goes through its layers."""

    SCAN = "scan"
    """One body, called for each layer: compiles as fast as one layer, copies what it keeps."""
    UNROLLED = "unrolled"
    """One body for each layer, over parameters that are copied apart once a step."""


class TransportKind(StrEnum):
    """How messages travel between ranks."""

    MPI = "mpi"
    """Over MPI, from host memory to host memory."""
    NCCL = "nccl"
    """Activations from GPU to GPU over NCCL, all else over MPI; without a GPU, MPI with a warning.

    Not run on a GPU yet.
    """
    SHAPED = "shaped"
    """Over MPI, each delayed as the links of the plan's cluster would delay it: emulated."""


class ComputeKind(StrEnum):
    """What a stage function does."""

    REAL = "real"
    """It computes."""
    PACED = "paced"
    """It waits as long as it should take on the cluster's devices, over emulated links: nothing is
    trained, and any model fits on any machine (`jaxpipe.paced`)."""


class TrackerKind(StrEnum):
    """What shows the metrics of a run, beside `metrics.jsonl` (`jaxpipe.runtime.metrics.trackers`).

    Each is an extra of this name. One that fails is told once, and training goes on without it.
    """

    TENSORBOARD = "tensorboard"
    """TensorBoard's files, in the folder `tensorboard` of the run."""
    TRACKIO = "trackio"
    """trackio, on this machine or where its environment variables say."""
    WANDB = "wandb"
    """Weights & Biases, online or as `WANDB_MODE` says."""


class Survival(StrEnum):
    """What becomes of a run that has lost a rank."""

    RESTART = "restart"
    """It ends, and `jaxpipe run` starts it again."""
    SHRINK = "shrink"
    """The others go on in the same job, with a smaller plan: Open MPI alone, which has ULFM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run lives, and how long its ranks wait for each other.

    `timeout_s` bounds every wait within a step, `startup_timeout_s` that for the slowest rank to
    compile its stage. A rank that does one thing for longer than `hang_s`, and than five times what
    99 % of the like have taken, hangs, and ends the run. With the transport `shaped`, `link_scale`
    multiplies the latencies and the seconds per byte of all links. Where computes are `paced`,
    links are emulated whatever the transport is, and the section `paced` has their scales.

    Each of the `trackers` is told of every step by rank 0; `project` is where trackio and W&B put
    the run.

    Where lost ranks are survived by `shrink`, the others train again within `recover_s`, compiled
    anew, or the job ends as it would with `restart`. They take the state of a lost stage from its
    replica; with `optimizer.sharded`, or without a replica, all go back to the newest checkpoint.
    """

    folder: str
    seed: int = 0
    timeout_s: float = 120.0
    startup_timeout_s: float = 900.0
    hang_s: float = 2.0
    transport: TransportKind = TransportKind.MPI
    link_scale: float = 1.0
    compute: ComputeKind = ComputeKind.REAL
    trackers: tuple[TrackerKind, ...] = ()
    project: str = "jaxpipe"
    survive: Survival = Survival.RESTART
    recover_s: float = 120.0

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
    """How a run with paced computes fits the machine, and how long its computes last.

    Every message has `message_scale` of the bytes that it stands for, over links of as much less
    bandwidth; left out, the largest has 2 KiB. An emulated second takes `time_scale` seconds.
    Computes last as long as the measured `profile` says, or else as their FLOPs take on the
    cluster's GPUs, and `tflops` are what a device reaches of which the cluster says nothing. Links
    are what DT-FM's runs found them to be, or with `ideal` what the cluster states.
    """

    message_scale: float | None = None
    time_scale: float = 1.0
    profile: str | None = None
    tflops: float | None = None
    ideal: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("message_scale", "tflops") if getattr(self, name) is not None]
        _check(self, above_zero=("time_scale", *given))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which prepared dataset to train on: a folder written by `jaxpipe data prepare`."""

    folder: str

    def __post_init__(self) -> None:
        check_path("folder", self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How much work: `batch` in samples per step over all replicas, `sequence` in tokens.

    `sequence` is the model's where it is left out. The held-out loss is measured after the first
    step, every `eval_every` steps, and after the last, on `eval_batches` batches.
    """

    steps: int = 100
    batch: int = 16
    sequence: int | None = None
    remat: Remat = Remat.NONE
    loop: Loop = Loop.UNROLLED
    log_every: int = 10
    eval_every: int = 50
    eval_batches: int = 4

    def __post_init__(self) -> None:
        _check(
            self,
            above_zero=("steps", "batch", "log_every", "eval_every", "eval_batches"),
        )
        if self.sequence is not None and self.sequence < 1:
            raise ValueError(f"`sequence` must be at least 1, is {self.sequence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """How the local devices of each rank share its stages (`jaxpipe.runtime.stage.mesh`).

    `data` parts of a microbatch times `tensor` parts of each layer: a rank uses the first
    `data` x `tensor` of the devices that it sees. `data` divides the microbatch, `tensor` the
    attention heads; a table of tokens whose rows `tensor` does not divide is whole on each device.
    """

    data: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        _check(self, above_zero=("data", "tensor"))

    @property
    def num_devices(self) -> int:
        """How many devices a rank uses."""
        return self.data * self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).

    The learning rate rises linearly over `warmup_steps` to `learning_rate`, and falls along a
    cosine to `final_fraction` of it at the last step. `weight_decay` acts on matrices alone.
    Gradients are clipped to `clip_norm`, taken over all stages. Where it is `sharded`, each replica
    of a stage holds the moments of an equal part of the parameters alone, updates these, and gets
    the others from the other replicas (ZeRO-1): less memory, more messages, the same losses.
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 20
    final_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    sharded: bool = False

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
    """How the loss is scaled, lest float16 gradients vanish (`jaxpipe.runtime.stage.loss_scale`).

    It is where `enabled`, or where that is left out and `model.compute_dtype` is float16. The scale
    starts at `initial`. A step that overflows divides it by `factor`, but never below 1;
    `growth_steps` steps in a row without overflow multiply it by `factor`, but never above
    `largest`. Powers of two change no bit of what is in float32.
    """

    enabled: bool | None = None
    initial: float = 2.0**16
    factor: float = 2.0
    growth_steps: int = 2000
    largest: float = 2.0**24

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
    """How many bytes ranks send: what is rounded or left out, and the size of a message.

    `boundary` encodes the activations and their gradients that travel between stages. `gradients`
    encodes what crosses the root of each sync tree, in a hierarchical all-reduce
    (`plan.all_reduce`); gradients of the same island travel as they are. Losses and norms are
    always exact. A sum goes in messages of `chunk_bytes` at most, before they are encoded.

    `top_k` is for gradients alone: it sends `top_k_fraction` of the values of each message, the
    largest ones, and adds what it leaves out to the next step's. What has been left out is not part
    of a checkpoint: a run that is resumed begins with nothing left out.
    """

    boundary: CodecKind = CodecKind.NONE
    gradients: CodecKind = CodecKind.NONE
    top_k_fraction: float = 0.01
    chunk_bytes: int = 2**20

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
    """A checkpoint every so many steps and after the last; the newest `keep` stay on disk."""

    every: int = 100
    keep: int = 2

    def __post_init__(self) -> None:
        _check(self, above_zero=("every", "keep"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """How many of the last steps the trace of a run holds."""

    steps: int = 3

    def __post_init__(self) -> None:
        _check(self, above_zero=("steps",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """What the trained model is asked to continue when a run ends."""

    prompt: str = "The "
    tokens: int = 200
    temperature: float = 0.8

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
