"""What a configuration compresses: bytes and seconds of each boundary, the outer loop, and prices.

A boundary between two stages counts where its messages have a codec, or keep few numbers of a
token. Bytes are those of a step, each way, of all replicas; seconds those of the slowest link.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxpipe.collective import CodecKind, Codecs
from jaxpipe.config import Config
from jaxpipe.models.bottleneck_costs import bottlenecks_of
from jaxpipe.plan import Plan
from jaxpipe.propose.loss_prices import Gap, codec_gap, outer_gap, rank_gap
from jaxpipe.propose.outer_advice import num_parameters
from jaxpipe.simulate import Conditions
from jaxpipe.simulate.outer_step import OuterTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Something that is compressed: what of it is sent, in which bytes and seconds, at which price.

    `plain_bytes` are those without compression. Gradients have neither bytes nor seconds here.
    """

    name: str
    sent: str
    num_bytes: float | None = None
    plain_bytes: float | None = None
    seconds: float | None = None
    gap: Gap | None = None


def compressions(
    config: Config, plan: Plan, conditions: Conditions, times: OuterTimes | None
) -> tuple[Compressed, ...]:
    """Return all that is compressed; `times` are those of an outer loop, if there is one."""
    return (
        *_boundaries(config, plan, conditions),
        *_gradients(conditions.codecs),
        *(() if times is None else (_outer(config, conditions, times),)),
    )


def compression_lines(rows: tuple[Compressed, ...]) -> list[str]:
    """Return a table, nothing without compression."""
    if not rows:
        return []
    width = max(len(row.name) for row in rows)
    return ["", "compressed (bytes and seconds each way)", *(_line(row, width) for row in rows)]


def _line(row: Compressed, width: int) -> str:
    parts = [row.sent]
    if row.num_bytes is not None and row.plain_bytes is not None:
        parts.append(f"{row.num_bytes / 1e6:,.4g} MB in place of {row.plain_bytes / 1e6:,.4g}")
    if row.seconds is not None:
        parts.append(f"{row.seconds:.3g} s")
    parts.append("price in loss unknown" if row.gap is None else str(row.gap))
    return f"  {row.name:<{width}}  {'; '.join(parts)}"


def _boundaries(config: Config, plan: Plan, conditions: Conditions) -> Iterator[Compressed]:
    """Yield the boundaries of a pipeline; those of replicas that are cut alike together."""
    ranks = dict(bottlenecks_of(config.model))
    cuts = {pipeline.cut: pipeline for pipeline in plan.pipelines}
    for cut, first in cuts.items():
        kinds = first.codecs or (conditions.codecs.boundary,) * (len(cut) - 1)
        for number, kind in enumerate(kinds):
            rank = ranks.get(sum(cut[: number + 1]))
            if rank is None and kind is CodecKind.NONE:
                continue
            numbers = None if rank is None else f"{rank} of {config.model.dim} numbers"
            codec = None if kind is CodecKind.NONE else kind.value
            num_bytes, plain_bytes, seconds = _crossing(plan, conditions, cut, number, kind)
            gap = codec_gap(Codecs(boundary=kind)) if rank is None else rank_gap(config.model)
            yield Compressed(
                name=f"stage {number} to {number + 1}",
                sent=", ".join(filter(None, (numbers, codec))),
                num_bytes=num_bytes,
                plain_bytes=plain_bytes,
                seconds=seconds,
                gap=gap,
            )


def _crossing(
    plan: Plan, conditions: Conditions, cut: tuple[int, ...], number: int, kind: CodecKind
) -> tuple[float, float, float]:
    """Return the bytes that cross a boundary of all replicas of a cut, without codec too."""
    codecs = replace(conditions.codecs, boundary=kind)
    ratio = codecs.boundary_ratio(conditions.activation_value_bytes)
    bandwidth = conditions.cluster.bandwidth_bytes_per_s
    sent, plain, seconds = 0.0, 0.0, 0.0
    for pipeline in plan.pipelines:
        if pipeline.cut != cut:
            continue
        profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
        one = profile.message_bytes(cut)[number] * ratio * pipeline.num_microbatches
        sent += one
        plain += profile.activation_bytes * pipeline.num_microbatches
        ends = [pipeline.devices[stage % pipeline.num_ranks] for stage in (number, number + 1)]
        if ends[0] != ends[1]:
            seconds = max(seconds, one / min(bandwidth[*ends], bandwidth[*ends[::-1]]))
    return sent, plain, seconds


def _gradients(codecs: Codecs) -> Iterator[Compressed]:
    if codecs.gradients is not CodecKind.NONE:
        yield Compressed(
            name="gradients",
            sent=f"{codecs.gradients} across the root of each sync tree",
            gap=codec_gap(Codecs(gradients=codecs.gradients)),
        )


def _outer(config: Config, conditions: Conditions, times: OuterTimes) -> Compressed:
    outer = config.outer
    codec = "" if outer.codec is CodecKind.NONE else f", {outer.codec}"
    return Compressed(
        name="outer loop",
        sent=f"{outer.islands} islands, every {outer.every} steps{codec}, of which "
        f"{times.exposed_s(outer):.3g} s are not hidden",
        seconds=times.outer_s,
        gap=outer_gap(outer, num_parameters=num_parameters(conditions)),
    )
