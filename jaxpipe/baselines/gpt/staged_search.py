"""Alpa's two searches together: layers into stages on submeshes, each sharded as is fastest.

For each size of microbatch the inter-operator pass assigns layers and devices
(`jaxpipe.baselines.autoshard.inter_op`); the fastest step of all wins. Hosts are equal and in a
row.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from jaxpipe.baselines.autoshard.hlo import TargetSpeeds
from jaxpipe.baselines.autoshard.inter_op import (
    BytesEach,
    Hosts,
    ShardedCosts,
    StagedModel,
    SubmeshSpace,
    assign_stages,
)
from jaxpipe.baselines.autoshard.inter_op.searched_collectives import SearchedCollectives
from jaxpipe.baselines.autoshard.intra_op import Machine
from jaxpipe.baselines.gpt.alpa_gpt import AlpaGpt, step_flops
from jaxpipe.baselines.gpt.sharded_layers import AlpaWorks
from jaxpipe.errors import PlanError
from jaxpipe.models import GptConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES

_LARGEST_MICROBATCH = 16
_TOLERANCE = 0.01
"""Bounds closer than this are one: thousands of stages differ by rounding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedStages:
    """What was found.

    Args:
        staged: the stages, and the predicted seconds of a step.
        shapes: dp and op of each stage.
        microbatch: samples of a microbatch, over all devices of a stage.
        peak_bytes: of the device that needs most.
        tflops: of all devices together.
        search_s: seconds of both searches.
    """

    staged: StagedModel
    shapes: tuple[tuple[int, int], ...]
    microbatch: int
    peak_bytes: float
    tflops: float
    search_s: float


def search_stages(
    config: GptConfig,
    speeds: TargetSpeeds,
    *,
    num_devices: int,
    batch: int,
    remat: bool,
    as_plan: bool = False,
) -> SearchedStages:
    """Return the stages with the shortest predicted step.

    With `as_plan` they are those that the pipeline executes: each inside a host, with equal parts
    of the heads (`jaxpipe.baselines.gpt.staged_plan`).

    Raises:
        PlanError: no stages fit into the devices.
    """
    started = time.perf_counter()
    works = _works(config, speeds, remat=remat)
    candidates: list[tuple[StagedModel, ShardedCosts]] = []
    refused: PlanError | None = None
    for microbatch in _microbatches(batch):
        costs = _costs(config, speeds, works, microbatch=microbatch, batch=batch)
        if as_plan:
            costs = replace(costs, allows=partial(_divides_heads, config))
        space = _space(config, speeds, num_devices=num_devices, microbatch=microbatch)
        if as_plan:
            space = replace(space, submeshes=_in_hosts(space.submeshes, speeds.host_devices))
        try:
            staged = assign_stages(
                costs,
                space,
                num_layers=config.num_layers,
                num_microbatches=costs.num_microbatches,
                tolerance=_TOLERANCE,
            )
        except PlanError as error:  # smaller microbatches may fit
            refused = error
            continue
        candidates.append((staged, costs))
    if not candidates:
        assert refused is not None
        raise refused
    staged, costs = min(candidates, key=lambda candidate: candidate[0].step_s)
    flops = step_flops(config, batch=batch, remat=remat)
    return SearchedStages(
        staged=staged,
        shapes=tuple(costs.shape(stage.layers, stage.devices) for stage in staged.stages),
        microbatch=costs.microbatch,
        peak_bytes=_peak_bytes(staged, num_microbatches=costs.num_microbatches),
        tflops=flops / staged.step_s / 1e12,
        search_s=time.perf_counter() - started,
    )


def _works(config: GptConfig, speeds: TargetSpeeds, *, remat: bool) -> AlpaWorks:
    """Return the work of the layers, with the collectives that a search shards them by."""
    return AlpaWorks(
        config=config,
        remat=remat,
        speeds=speeds,
        collectives=SearchedCollectives(
            model=partial(_with_layers, config),
            sequence=config.sequence,
            dtype=config.compute_dtype,
            remat=remat,
            machine=Machine(flops_per_s=speeds.products[config.compute_dtype]),
            ring_bytes_per_s=speeds.ring_bytes_per_s,
        ),
    )


def _divides_heads(config: GptConfig, _dp: int, op: int) -> bool:
    return config.num_heads % op == 0


def _in_hosts(submeshes: Iterable[range], host_devices: int) -> tuple[range, ...]:
    """Return the submeshes inside a host.

    >>> _in_hosts([range(0, 2), range(2, 4), range(0, 4)], 2)
    (range(0, 2), range(2, 4))
    """
    return tuple(
        submesh
        for submesh in submeshes
        if submesh.start // host_devices == (submesh.stop - 1) // host_devices
    )


def _microbatches(batch: int) -> Iterator[int]:
    size = 1
    while size <= min(batch, _LARGEST_MICROBATCH):
        if batch % size == 0:
            yield size
        size *= 2


def _costs(
    config: GptConfig, speeds: TargetSpeeds, works: AlpaWorks, *, microbatch: int, batch: int
) -> ShardedCosts:
    width = DTYPE_BYTES[config.compute_dtype]
    return ShardedCosts(
        works=works,
        hosts=Hosts(
            devices=speeds.host_devices,
            ring_bytes_per_s=speeds.ring_bytes_per_s,
            link_bytes_per_s=speeds.host_link_bytes_per_s,
            memory_bytes=speeds.memory_bytes,
            memory_bytes_per_s=speeds.memory_bytes_per_s,
        ),
        # The parameter, the old one next to it, the gradient, Adam's moments; in 16 bits a copy in
        # float32. What the optimizer moves is that of `step_memory_bytes`.
        per_parameter=BytesEach(stored=18 if width == 2 else 20, gradient=width, update=28),
        num_layers=config.num_layers,
        microbatch=microbatch,
        num_microbatches=batch // microbatch,
    )


def _space(
    config: GptConfig, speeds: TargetSpeeds, *, num_devices: int, microbatch: int
) -> SubmeshSpace:
    size = speeds.host_devices
    num_bytes = microbatch * config.sequence * config.dim * DTYPE_BYTES[config.compute_dtype]

    def hop_s(device: int) -> float:
        # Between neighbours of a host by its links, else by the card: there and back.
        rate = speeds.ring_bytes_per_s(2) if device % size else speeds.host_link_bytes_per_s
        return 2 * num_bytes / rate

    return SubmeshSpace(
        submeshes=tuple(submesh_ranges(num_devices, host_devices=size)),
        memory_bytes=[speeds.memory_bytes] * num_devices,
        hop_s=hop_s,
    )


def submesh_ranges(num_devices: int, *, host_devices: int) -> Iterator[range]:
    """Yield the ranges that a stage may have: powers of two in a host, or whole hosts.

    >>> [(each.start, each.stop) for each in submesh_ranges(3, host_devices=2)]
    [(0, 1), (1, 2), (0, 2), (2, 3)]

    Source: Zheng et al., "Alpa", OSDI 2022, section 5.2.
    """
    for first in range(0, num_devices, host_devices):
        stop = min(first + host_devices, num_devices)
        size = 1
        while size <= stop - first:
            yield from (range(start, start + size) for start in range(first, stop - size + 1))
            size *= 2
    num_hosts = num_devices // host_devices
    for first in range(num_hosts):
        for last in range(first + 2, num_hosts + 1):
            yield range(first * host_devices, last * host_devices)


def _peak_bytes(staged: StagedModel, *, num_microbatches: int) -> float:
    count = len(staged.stages)
    return max(
        stage.cost.held_bytes + stage.cost.live_bytes * min(count - position, num_microbatches)
        for position, stage in enumerate(staged.stages)
    )


def _with_layers(config: GptConfig, num_layers: int) -> AlpaGpt:
    return AlpaGpt(replace(config, num_layers=num_layers))
