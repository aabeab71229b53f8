"""The sections `train`, `comm`, `checkpoint`, `trace` and `sample`.

Others lie beside their owners: `run_config`, `data_config`, `rank_mesh`, `stage.optimizer_config`.

No jax here: a configuration is checked before anything slow is imported. The docstring below each
field is its entry in the reference of the documentation; the unit stands in brackets.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from jaxpipe.collective import CodecKind
from jaxpipe.ranges import Range, check_ranges
from jaxpipe.runtime.path_checks import check_url
from jaxpipe.schedule.remat import Remat

_AT_LEAST_1 = Range(least=1)
_PART = Range(above=0, most=1)
_CHUNK = Range(least=512, why="messages of fewer bytes take a step past its timeout")
_MOST_STEPS = 2**31 - 1
_COUNT = Range(least=1, most=_MOST_STEPS, why="arrays count in 32 bits")
_STEPS = Range(least=1, most=_MOST_STEPS, why="optimizers count steps in 32 bits")


class Loop(StrEnum):
    """How a stage iterates over its layers."""

    SCAN = "scan"
    """One body for all layers (`jax.lax.scan`): compiles as fast as one layer, copies residuals."""
    UNROLLED = "unrolled"
    """One body per layer: compiles longer, runs faster; parameters are unstacked once a step."""


class LinkDetail(StrEnum):
    """The ends of the links in reports."""

    NONE = "none"
    """No reports: messages are not logged."""
    REGIONS = "regions"
    """Regions of the cluster."""
    RANKS = "ranks"
    """Regions, and ranks as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The amount of work, and how often it is reported.

    The held-out loss is measured after the first step, every `eval_every` steps, and after the last
    one; never, if that is 0.
    """

    steps: Annotated[int, _STEPS] = 100
    """Number of training steps [steps]; the learning rate decays until the last one."""
    epochs: Annotated[float | None, Range(above=0, most=1e9)] = None
    """Passes over the training samples of all datasets, in place of `steps`, which are counted when
    the configuration is read: the datasets must be there."""
    batch: Annotated[int, _COUNT] = 16
    """Samples per step, over all replicas [samples]."""
    sequence: Annotated[int | None, _COUNT] = None
    """Length of a sample [tokens]; by default the maximum of the model."""
    remat: Remat | None = None
    """What a layer keeps of its forward for its backward (rematerialisation). Default: `none`; or
    searched, where a field of `[plan]` is."""
    loop: Loop = Loop.UNROLLED
    """How a stage iterates over its layers."""
    log_every: Annotated[int, _AT_LEAST_1] = 10
    """Interval between lines on the terminal [steps]; `metrics.jsonl` has every step."""
    eval_every: Annotated[int, Range(least=0)] = 50
    """Interval between measurements of the held-out loss [steps]; 0: it is never measured, and no
    data are needed for it."""
    eval_batches: Annotated[int | None, _COUNT] = None
    """Batches per measurement of the held-out loss [batches]; default: 4, or as many as there
    are."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that never change, such as `embed.*` or `blocks.[0-3].*`, by their
    names in a checkpoint; default none. They have no gradient and no moments."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def evaluates_after(self, step: int, *, is_stopped: bool = False) -> bool:
        """Return whether the held-out loss is measured after a step, counted from 1.

        >>> train = TrainConfig(steps=7, eval_every=3)
        >>> [step for step in range(1, 8) if train.evaluates_after(step)]
        [1, 3, 6, 7]
        """
        if not self.eval_every:
            return False
        is_due = step % self.eval_every == 0 and not is_stopped
        return step in (1, self.steps) or is_due


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
    chunk_bytes: Annotated[int, _CHUNK] = 2**20
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
    give_up_after: Annotated[int, Range(least=0)] = 5
    """Number of saves in a row that may fail before the run ends, whose later steps could not be
    resumed either; 0 for any number."""
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
    tokens: Annotated[int, Range(least=0, most=_MOST_STEPS)] = 200
    """Length of the continuation [tokens]; 0 generates none."""
    temperature: Annotated[float, Range(least=0, most=1e9)] = 0.8
    """Temperature of the distribution from which tokens are drawn; 0 takes the most likely one."""

    def __post_init__(self) -> None:
        check_ranges(self)
