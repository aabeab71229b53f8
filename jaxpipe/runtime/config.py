"""The sections of the configuration that belong to the runtime.

No jax here: a configuration is checked before anything slow is imported. The docstring below each
field is its entry in the reference of the documentation; the unit stands in brackets.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from jaxpipe.collective import CodecKind
from jaxpipe.ranges import Range, check_ranges
from jaxpipe.runtime.optimizer_kinds import OptimizerName
from jaxpipe.runtime.path_checks import check_path, check_url
from jaxpipe.schedule.remat import Remat

_AT_LEAST_0 = Range(least=0)
_AT_LEAST_1 = Range(least=1)
_POSITIVE = Range(above=0)
_PART = Range(above=0, most=1)
_FRACTION = Range(least=0, most=1)
_DECAY_RATE = Range(least=0, below=1)
_MOST_STEPS = 2**31 - 1
_STEPS = Range(least=1, most=_MOST_STEPS, why="optimizers count steps in 32 bits")
_COUNTED_STEPS = Range(least=0, most=_MOST_STEPS, why="optimizers count steps in 32 bits")
_SEED = Range(least=0, most=2**32 - 1, why="a key of JAX has 32 bits of the seed")
_WAIT = Range(above=0, most=1e9, why="longer waits overflow the clocks of the system")


class Loop(StrEnum):
    """How a stage iterates over its layers."""

    SCAN = "scan"
    """One body for all layers (`jax.lax.scan`): compiles as fast as one layer, copies residuals."""
    UNROLLED = "unrolled"
    """One body per layer: compiles longer, runs faster; parameters are unstacked once a step."""


class TransportKind(StrEnum):
    """How messages are sent between ranks."""

    MPI = "mpi"
    """MPI, from host memory to host memory."""
    NCCL = "nccl"
    """NCCL for activations between GPUs, MPI for the rest; without GPUs, MPI with a warning.

    Not run on a GPU yet.
    """
    SHAPED = "shaped"
    """MPI, each message delayed as the links of the plan's cluster would delay it (emulated)."""


class MatmulPrecision(StrEnum):
    """The precision of products of float32 matrices; CPUs always compute them in float32.

    Source: JAX, `jax.lax.Precision`. Products of bfloat16 or float16 do not depend on it.
    """

    TF32 = "tf32"
    """TF32 on GPUs that have it (NVIDIA's from the A100 on), float32 on others: JAX's default.
    Inputs are rounded to 10 bits of mantissa, sums are float32; about eight times as fast."""
    FLOAT32 = "float32"
    """float32 on all devices."""

    @property
    def jax_name(self) -> str:
        """The value of `jax_default_matmul_precision`."""
        # JAX's "tensorfloat32" is the same on GPUs, but asks a TPU for three passes.
        return "default" if self is MatmulPrecision.TF32 else self.value


class ComputeKind(StrEnum):
    """Whether stages compute."""

    REAL = "real"
    """Stages compute."""
    PACED = "paced"
    """Stages wait for as long as they would compute on the cluster's devices, over emulated links:
    nothing is trained, and any model fits on any machine."""


class Schedule(StrEnum):
    """How the learning rate changes after its linear warm-up."""

    COSINE = "cosine"
    """Decreases along a cosine until the last step."""
    WSD = "wsd"
    """Stays at its peak, and decreases linearly in the last `decay_fraction` of the steps."""
    LINEAR = "linear"
    """Decreases linearly until the last step."""
    CONSTANT = "constant"
    """Stays at its peak."""


class Decayed(StrEnum):
    """The parameters that `weight_decay` makes smaller."""

    MATRICES = "matrices"
    """Matrices of layers, tables and the head; not norms and biases."""
    BLOCKS = "blocks"
    """Matrices of layers alone."""
    ALL = "all"
    """All parameters."""


class TrackerKind(StrEnum):
    """Services that show the metrics of a run, in addition to `metrics.jsonl`.

    Each needs the extra of its name. If one fails, a warning says so and training continues.
    """

    TENSORBOARD = "tensorboard"
    """TensorBoard event files, in the folder `tensorboard` of the run."""
    TRACKIO = "trackio"
    """trackio, on this machine unless its environment variables name another place."""
    WANDB = "wandb"
    """Weights & Biases, online unless `WANDB_MODE` says otherwise."""


class LinkDetail(StrEnum):
    """The ends of the links in reports."""

    NONE = "none"
    """No reports: messages are not logged."""
    REGIONS = "regions"
    """Regions of the cluster."""
    RANKS = "ranks"
    """Regions, and ranks as well."""


class Survival(StrEnum):
    """What happens when a rank is lost."""

    RESTART = "restart"
    """The run ends; `jaxpipe run` starts it again from its newest checkpoint."""
    SHRINK = "shrink"
    """The other ranks continue in the same job, with a smaller plan; needs Open MPI, for ULFM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The folder of a run, its transport, its timeouts, and its behaviour on failures.

    With `survive = "shrink"`, survivors take the state of a lost stage from its replica; with
    `optimizer.sharded`, or without a replica, all go back to the newest checkpoint.
    """

    folder: str
    """The folder of the run: checkpoints, metrics and trace; created if it is missing."""
    seed: Annotated[int, _SEED] = 0
    """The seed of the initial parameters, the order of the samples, and dropout."""
    timeout_s: Annotated[float, _WAIT] = 120.0
    """Timeout of every wait within a step [s]."""
    startup_timeout_s: Annotated[float, _WAIT] = 900.0
    """Timeout of the wait for the slowest rank to compile its stages [s]."""
    hang_s: Annotated[float, _WAIT] = 2.0
    """Minimum duration of an instruction before its rank counts as hanging [s]: the run ends when
    an instruction exceeds it, and also five times the 99th percentile of earlier ones."""
    transport: TransportKind = TransportKind.MPI
    """How messages are sent between ranks; ignored by paced runs, whose links are emulated."""
    keep_warm: bool = True
    """Whether silent MPI connections between hosts carry a byte every 0.1 s, if Linux would let
    them start slowly otherwise; no effect on results."""
    link_scale: Annotated[float, _POSITIVE] = 1.0
    """Factor on the latency and on the time per byte of all links; `shaped` transport only."""
    compute: ComputeKind = ComputeKind.REAL
    """Whether stages compute, or wait instead (a paced run, section `paced`)."""
    matmul_precision: MatmulPrecision = MatmulPrecision.TF32
    """The precision of products of float32 matrices on GPUs, in training and in samples of text;
    CPUs compute float32 with either."""
    trackers: tuple[TrackerKind, ...] = ()
    """Services to which rank 0 logs the metrics of each step; default none."""
    project: str = "jaxpipe"
    """The project of the run in trackio and Weights & Biases."""
    pictures: bool = True
    """Whether a run ends with pictures of its last step and of its losses; they take seconds."""
    survive: Survival = Survival.RESTART
    """What happens when a rank is lost."""
    recover_s: Annotated[float, _WAIT] = 120.0
    """Deadline for survivors to train again [s], compilation included; after it, the job ends as
    it would with `survive = "restart"`."""
    change_every: Annotated[int, _AT_LEAST_1] = 1000
    """Expected interval between changes of the ranks, losses and returns of devices [steps]: the
    plan that follows one has the least sum of these steps and of the seconds of moving state."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError(
                f"no tracker may be named twice: `trackers` is {', '.join(self.trackers)}; name "
                "each once"
            )
        check_path("folder", self.folder)
        if self.link_scale != 1 and self.transport is not TransportKind.SHAPED:
            raise ValueError(
                f"only shaped links can be scaled: `link_scale` is {self.link_scale}, `transport` "
                f"{self.transport}; set it to {TransportKind.SHAPED}, or leave out `link_scale`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedConfig:
    """How a paced run is scaled to this machine, and how long its computes last."""

    message_scale: Annotated[float | None, _POSITIVE] = None
    """Factor on the size of every message, and on the bandwidth of every link; by default such
    that the largest message has 2 KiB."""
    time_scale: Annotated[float, _POSITIVE] = 1.0
    """Real seconds per emulated second."""
    profile: str | None = None
    """A measured profile from which computes take their duration; by default it follows from their
    FLOPs and the devices of the cluster."""
    profile_of: tuple[str, ...] = ()
    """Measured profiles of GPU types of the cluster, as `GPU=FILE`, in place of `profile`. Other
    types are scaled from the first by their peaks."""
    tflops: Annotated[float | None, _POSITIVE] = None
    """Throughput of devices for which the cluster states none [TFLOP/s]; by default they are an
    error, if there is no profile."""
    ideal: bool = False
    """Use the latencies and bandwidths of the cluster as they are; by default links also have the
    overheads that were fitted to DT-FM's published runs."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.profile is not None and self.profile_of:
            raise ValueError(
                f"`profile` is {self.profile}, and `profile_of` {' '.join(self.profile_of)}: a "
                "model has one profile, or one for each GPU type; remove one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The amount of work, and how often it is reported.

    The held-out loss is measured after the first step, every `eval_every` steps, and after the last
    one.
    """

    steps: Annotated[int, _STEPS] = 100
    """Number of training steps [steps]; the learning rate decays until the last one."""
    batch: Annotated[int, _AT_LEAST_1] = 16
    """Samples per step, over all replicas [samples]."""
    sequence: Annotated[int | None, _AT_LEAST_1] = None
    """Length of a sample [tokens]; by default the maximum of the model."""
    remat: Remat | None = None
    """What a layer keeps of its forward for its backward (rematerialisation). Default: `none`; or
    searched, where a field of `[plan]` is."""
    loop: Loop = Loop.UNROLLED
    """How a stage iterates over its layers."""
    log_every: Annotated[int, _AT_LEAST_1] = 10
    """Interval between lines on the terminal [steps]; `metrics.jsonl` has every step."""
    eval_every: Annotated[int, _AT_LEAST_1] = 50
    """Interval between measurements of the held-out loss [steps]."""
    eval_batches: Annotated[int, _AT_LEAST_1] = 4
    """Batches per measurement of the held-out loss [batches]."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that never change, such as `embed.*` or `blocks.[0-3].*`, by their
    names in a checkpoint; default none. They have no gradient and no moments."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """How the local devices of each rank share its stages.

    A rank uses the first `data` x `context` x `tensor` of the devices that it sees. A token
    embedding is replicated if `tensor` does not divide its rows.
    """

    data: Annotated[int, _AT_LEAST_1] = 1
    """Parts of each microbatch, one per device of the axis; must divide the microbatch."""
    context: Annotated[int, _AT_LEAST_1] = 1
    """Parts of each sequence, one per device of the axis (context parallelism, ring attention);
    twice as many must divide the sequence."""
    tensor: Annotated[int, _AT_LEAST_1] = 1
    """Parts of each layer, one per device of the axis (tensor parallelism); must divide the
    attention heads."""
    sharded: bool = False
    """Shard parameters, gradients and moments over `data` and `context` as well (ZeRO-3, FSDP)."""
    sequence_parallel: bool = False
    """Between attention and MLP, where tensor parallelism has nothing to divide, divide sequences
    over `tensor` as well; it must divide them."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.sharded and self.data * self.context == 1:
            raise ValueError(
                "`sharded` splits parameters over the axes `data` and `context`, which are 1; "
                "raise one, or set `sharded` to false"
            )
        if self.sequence_parallel and self.tensor == 1:
            raise ValueError(
                "`sequence_parallel` divides sequences over the axis `tensor`, which is 1; raise "
                "it, or set `sequence_parallel` to false"
            )

    @property
    def num_devices(self) -> int:
        """The number of devices of a rank."""
        return self.data * self.context * self.tensor

    @property
    def words(self) -> str:
        """The axes and their sizes, for messages."""
        return (
            "`mesh.data` x `mesh.context` x `mesh.tensor` = "
            f"{self.data} x {self.context} x {self.tensor}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer by its name, and its learning rate.

    The learning rate rises linearly to its peak, then follows `schedule`. Gradient accumulation is
    that of the pipeline: a step sums over its microbatches.
    """

    name: OptimizerName = OptimizerName.ADAMW
    """The rule that turns gradients into updates."""
    schedule: Schedule = Schedule.COSINE
    """How the learning rate changes after the warm-up."""
    decay_fraction: Annotated[float, _PART] = 0.2
    """The part of all steps in which the learning rate of `wsd` decreases."""
    learning_rate: Annotated[float, _POSITIVE] = 1e-3
    """Peak of the learning rate, after the warm-up."""
    warmup_steps: Annotated[int, _COUNTED_STEPS] = 20
    """Duration of the linear warm-up [steps]; 0 starts at the peak."""
    final_fraction: Annotated[float, _FRACTION] = 0.1
    """Learning rate at the last step, as a fraction of the peak; not of `constant`."""
    beta1: Annotated[float, _DECAY_RATE] = 0.9
    """Decay rate of the first moment, per step; the momentum of `sgd` and of `muon`."""
    beta2: Annotated[float, _DECAY_RATE] = 0.95
    """Decay rate of the second moment, per step; of the only one of `lion`."""
    epsilon: Annotated[float, _POSITIVE] = 1e-8
    """Added to the square root of the second moment, against division by zero."""
    weight_decay: Annotated[float, Range(least=0, most=1000)] = 0.1
    """Decoupled weight decay, times the learning rate."""
    decayed: Decayed = Decayed.MATRICES
    """The parameters with weight decay."""
    clip_norm: Annotated[float, _POSITIVE] = 1.0
    """Maximum of the global norm of the gradients over all stages; larger ones are scaled down."""
    sharded: bool = False
    """Shard the optimizer over the replicas of each stage (ZeRO-1): each keeps the moments of an
    equal part of the parameters, updates it, and gathers the rest. Less memory, more messages, the
    same losses up to rounding. By default every replica has all moments."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """Dynamic loss scaling, against underflow of float16 gradients.

    A step whose gradients are not finite is skipped. Powers of two change no bit of float32.
    """

    enabled: bool | None = None
    """Whether the loss is scaled; by default only if `model.compute_dtype` is float16."""
    initial: Annotated[float, _AT_LEAST_1] = 2.0**16
    """Scale of the first step, from 1 to `largest`."""
    factor: Annotated[float, Range(above=1)] = 2.0
    """Divides the scale after a step that overflows, but never below 1; multiplies it after
    `growth_steps` steps without overflow."""
    growth_steps: Annotated[int, _AT_LEAST_1] = 2000
    """Steps in a row without overflow before the scale grows [steps]."""
    largest: Annotated[float, _AT_LEAST_1] = 2.0**24
    """Maximum of the scale."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.initial > self.largest:
            raise ValueError(
                f"`initial` must be at most `largest` ({self.largest:g}), not {self.initial:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommConfig:
    """Compression of messages, and their maximum size. Losses and norms are always exact."""

    boundary: CodecKind = CodecKind.NONE
    """Codec of the activations between stages, and of their gradients; not `top_k`. By default they
    are sent as they are."""
    gradients: CodecKind = CodecKind.NONE
    """Codec of gradients across the root of each sync tree, in a hierarchical all-reduce
    (`plan.all_reduce`); within an island they are sent as they are. `top_k` feeds its residuals
    back into the next step; they are not part of a checkpoint, and zero when a run resumes."""
    top_k_fraction: Annotated[float, _PART] = 0.01
    """Fraction of the values that `top_k` sends of each message, the largest ones."""
    chunk_bytes: Annotated[int, _AT_LEAST_1] = 2**20
    """Maximum size of one message of an all-reduce, before it is compressed [bytes]."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.boundary.facts.needs_feedback:
            others = [kind for kind in CodecKind if not kind.facts.needs_feedback]
            raise ValueError(
                f"`boundary` must not be {self.boundary}: an activation left out is lost, without "
                f"error feedback; choose from {', '.join(others)}, or use it for `gradients`"
            )

    @property
    def feeds_back(self) -> bool:
        """Whether the codec of gradients adds its residuals to the next step (error feedback)."""
        return self.gradients.facts.needs_feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are saved, and how many stay; one is always saved after the last step."""

    every: Annotated[int, _AT_LEAST_1] = 100
    """Interval between checkpoints [steps]."""
    keep: Annotated[int, _AT_LEAST_1] = 2
    """Number of checkpoints that are kept, the newest ones."""
    folder: str | None = None
    """Object storage for the checkpoints, as `s3://BUCKET/PREFIX` or another URL of fsspec, with
    the extra `object-storage`; by default they are in the folder of the run."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.folder is not None:
            otherwise = "leave it out for checkpoints in the folder of the run"
            check_url("folder", self.folder, otherwise=otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The extent of the trace of a run, and of its reports of links."""

    steps: Annotated[int, _AT_LEAST_1] = 3
    """Number of steps in the trace, the last ones of the run [steps]."""
    links: LinkDetail = LinkDetail.REGIONS
    """Ends of the links whose bytes, seconds and goodput are in `metrics.jsonl`."""
    links_every: Annotated[int, _AT_LEAST_1] = 10
    """Interval between reports of links [steps]; the last step has one as well."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """The text that the trained model generates at the end of a run."""

    prompt: str = "The "
    """The beginning of the text."""
    tokens: Annotated[int, _AT_LEAST_0] = 200
    """Length of the continuation [tokens]; 0 generates none."""
    temperature: Annotated[float, _AT_LEAST_0] = 0.8
    """Temperature of the distribution from which tokens are drawn; 0 takes the most likely one."""

    def __post_init__(self) -> None:
        check_ranges(self)
