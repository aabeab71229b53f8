"""One replica of a plan: its devices, its partition of the layers, and its share of the batch."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jaxpipe.collective import CodecKind
from jaxpipe.plan.partition import Cut, layers_of
from jaxpipe.schedule import stages_held


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One whole pipeline; the replicas of a plan may have unlike ones.

    `devices` are those of the cluster, one for each rank, which sends and receives its messages;
    `peers[rank]` are further devices of its host, with which it shares its stages (`Sharing`). No
    `peers` at all stand for ranks of one device. `cut[stage]` is the number of layers of a
    stage; every rank holds an equal number of stages. `microbatch` is in samples. `warmup` is the
    number of forwards before the first backward, for each stage. `codecs[stage]` is that of the
    messages between a stage and the next one; without any, all have that of the run's configuration
    (`comm.boundary`). `data_parts[rank]` is into how many parts its devices divide a microbatch's
    samples, before those of each part share its stages as the plan's `sharing` says; without any,
    `sharing` is all that is divided.
    """

    devices: tuple[int, ...]
    cut: Cut
    num_microbatches: int
    microbatch: int = 1
    warmup: tuple[int, ...] | None = None
    peers: tuple[tuple[int, ...], ...] = ()
    codecs: tuple[CodecKind, ...] = ()
    data_parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not any(self.peers):
            # A frozen dataclass can only be set like this.
            object.__setattr__(self, "peers", ())
        if all(parts == 1 for parts in self.data_parts):
            object.__setattr__(self, "data_parts", ())

    @property
    def shape(self) -> tuple[object, ...]:
        """Everything but devices and codecs of messages: equal where replicas are alike."""
        counts = (self.num_ranks, self.num_microbatches, self.microbatch)
        return (*counts, self.cut, self.warmup, self.degrees, self.data_parts)

    @property
    def degrees(self) -> tuple[int, ...]:
        """The number of devices of each rank."""
        return tuple(1 + len(peer) for peer in self.peers) or (1,) * self.num_ranks

    @property
    def tensor_parts(self) -> tuple[int, ...]:
        """The devices of each rank that compute the same samples."""
        parts = self.data_parts or (1,) * self.num_ranks
        return tuple(size // part for size, part in zip(self.degrees, parts, strict=True))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each rank, the one that sends and receives first."""
        peers = self.peers or ((),) * self.num_ranks
        return tuple((device, *peer) for device, peer in zip(self.devices, peers, strict=True))

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the pipeline."""
        return len(self.devices)

    @property
    def num_stages(self) -> int:
        """The number of stages of the pipeline."""
        return len(self.cut)

    @property
    def num_samples(self) -> int:
        """The samples of a step: the share of the batch."""
        return self.num_microbatches * self.microbatch

    def stages(self, number: int) -> range:
        """Return the stages of a rank, which has this number in the pipeline."""
        return stages_held(number, num_ranks=self.num_ranks, num_stages=self.num_stages)

    def layers(self, stage: int) -> range:
        """Return the layers of a stage."""
        return layers_of(self.cut, stage)


def equal_pipelines(
    placement: Iterable[tuple[int, ...]],
    *,
    cut: Cut,
    num_microbatches: int,
    microbatch: int = 1,
    warmup: tuple[int, ...] | None = None,
) -> tuple[Pipeline, ...]:
    """Return a pipeline for each row of devices, alike in everything else; no rank has peers."""
    first = Pipeline(
        devices=(),
        cut=cut,
        num_microbatches=num_microbatches,
        microbatch=microbatch,
        warmup=warmup,
    )
    return tuple(replace(first, devices=row) for row in placement)
