"""The sections `run` and `paced`: folder, transport, failures, and waiting instead of computing."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from jaxpipe.ranges import Range, check_ranges
from jaxpipe.runtime.path_checks import check_path

_AT_LEAST_1 = Range(least=1)
_FACTOR = Range(above=0, most=1e9, why="longer waits overflow the clocks of the system")
_SEED = Range(least=0, most=2**32 - 1, why="a key of JAX has 32 bits of the seed")
_WAIT = Range(
    least=0.1,
    most=1e9,
    why="shorter ones end while all is well, longer ones overflow the clocks of the system",
)
_INTERFACES = re.compile(r"[\w.:/-]{1,64}(,[\w.:/-]{1,64})*", re.ASCII)


class TransportKind(StrEnum):
    """How messages are sent between ranks."""

    MPI = "mpi"
    """MPI, from host memory to host memory."""
    NCCL = "nccl"
    """NCCL for activations between GPUs, MPI for the rest; without GPUs, MPI with a warning.

    Not run between GPUs yet.
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


class Survival(StrEnum):
    """What happens when a rank is lost."""

    RESTART = "restart"
    """The run ends; `jaxpipe run` starts it again from its newest checkpoint."""
    SHRINK = "shrink"
    """The other ranks continue in the same job, with a smaller plan; needs Open MPI, for ULFM."""


class AllowedChange(StrEnum):
    """What may differ from the checkpoint of a run that resumes, if its user allows it."""

    DATA = "data"
    """The samples and their order: a dataset, its weight, `data.pack`, `train.sequence` or
    `run.seed`. The new order begins at its first sample."""


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
    """Timeout of every wait for a message within a step [s]; an all-reduce, of many messages, may
    take longer while they move."""
    startup_timeout_s: Annotated[float, _WAIT] = 900.0
    """Timeout of the wait for the slowest rank to start MPI, and then to compile its stages [s];
    with `--hosts`, and a minute more, of the start of MPI on all hosts."""
    answer_s: Annotated[float, _WAIT] = 15.0
    """Timeout of the answer of a host, on which `mpirun` starts a process over ssh [s]; with
    `--hosts` only."""
    interface: str | None = None
    """The network interfaces of MPI between hosts, by name or as networks such as `10.0.0.0/24`,
    separated by commas; by default those on the ways to the other hosts; with `--hosts` only."""
    hang_s: Annotated[float, _WAIT] = 2.0
    """Minimum duration of an instruction before its rank counts as hanging [s]: the run ends when
    an instruction exceeds it, and also five times the 99th percentile of earlier ones."""
    transport: TransportKind = TransportKind.MPI
    """How messages are sent between ranks; ignored by paced runs, whose links are emulated."""
    keep_warm: bool = True
    """Whether silent MPI connections between hosts carry a byte every 0.1 s, if Linux would let
    them start slowly otherwise; no effect on results."""
    link_scale: Annotated[float, _FACTOR] = 1.0
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
                f"`trackers` must name no tracker twice, is {', '.join(self.trackers)}; name each "
                "once"
            )
        check_path("folder", self.folder)
        if self.interface is not None and not _INTERFACES.fullmatch(self.interface):
            raise ValueError(
                f"`interface` must be names of interfaces or networks, separated by commas, is "
                f"{self.interface!r:.80}; give for example eth0, or 10.0.0.0/24"
            )
        if self.link_scale != 1 and self.transport is not TransportKind.SHAPED:
            raise ValueError(
                f"`link_scale` ({self.link_scale}) must be 1 where `transport` is "
                f"{self.transport}: only {TransportKind.SHAPED} links are scaled; set that, or "
                "leave out `link_scale`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedConfig:
    """How a paced run is scaled to this machine, and how long its computes last."""

    message_scale: Annotated[float | None, _FACTOR] = None
    """Factor on the size of every message, and on the bandwidth of every link; by default such
    that the largest message has 2 KiB."""
    time_scale: Annotated[float, _FACTOR] = 1.0
    """Real seconds per emulated second."""
    profile: str | None = None
    """A measured profile from which computes take their duration; by default it follows from their
    FLOPs and the devices of the cluster."""
    profile_of: tuple[str, ...] = ()
    """Measured profiles of GPU types of the cluster, as `GPU=FILE`, in place of `profile`. Other
    types are scaled from the first by their peaks."""
    tflops: Annotated[float | None, Range(least=1e-6, most=1e6)] = None
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
