"""What a configuration compresses: bytes and seconds of each boundary, of outer steps, and prices.

Boundaries between stages are listed where messages of one of them have a codec, or keep few numbers
of a token. Bytes are those of a step, each way, of all replicas. Seconds are those of the slowest
link: of its bandwidth before a run (`jaxpipe simulate`), measured after it (`jaxpipe trace`). The
way of an island to its merge server is in no cluster file: deliveries have seconds after a run.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

import numpy as np

from jaxpipe.collective import CodecKind, Codecs
from jaxpipe.collective.codec.codecs import bytes_per_value
from jaxpipe.config import Config
from jaxpipe.models.bottleneck_costs import bottlenecks_of
from jaxpipe.outer import OuterConfig, QuorumConfig
from jaxpipe.plan import Pipeline, Plan
from jaxpipe.propose.loss_prices import Gap, codec_gap, outer_gap, rank_gap
from jaxpipe.propose.outer_advice import num_parameters
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.simulate import Conditions
from jaxpipe.simulate.outer_step import OuterTimes
from jaxpipe.trace import Trace
from jaxpipe.trace.link_use import busy
from jaxpipe.trace.span import messages

_ANCHOR_BYTES = 4
"""Of a value: anchors are float32."""
_NOT_COMPRESSED = Gap(fraction=0.0, basis="not compressed")

Seconds: TypeAlias = Callable[[int, int, float], float]
"""Seconds in which a replica's messages of a boundary cross it in a step, each way, from the number
of the replica, that of the boundary and the bytes."""


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
    bandwidth = conditions.cluster.bandwidth_bytes_per_s

    def seconds(replica: int, boundary: int, num_bytes: float) -> float:
        one, other = _ends(plan.pipelines[replica], boundary)
        return (
            0.0 if one == other else num_bytes / min(bandwidth[one, other], bandwidth[other, one])
        )

    return (
        *_boundaries(config, plan, conditions, seconds),
        *_gradients(conditions.codecs),
        *(() if times is None else (_outer(config, conditions, times),)),
        *_deliveries(config, conditions),
    )


def measured_compressions(
    config: Config,
    plan: Plan,
    conditions: Conditions,
    trace: Trace,
    metrics: Sequence[StepMetrics],
) -> tuple[Compressed, ...]:
    """Return all that a run has compressed, with the seconds that its trace and metrics show.

    Those of a boundary are the mean over steps of the time in which at least one of its messages
    was on its way. Those of the outer loop are how much longer a step took after which an outer
    step ended, at the median. `conditions` give the sizes alone.
    """
    measured = _measured_s(plan, trace)

    def seconds(replica: int, boundary: int, num_bytes: float) -> float:
        del num_bytes  # they follow from the plan
        return measured.get((replica, boundary), 0.0)

    return (
        *_boundaries(config, plan, conditions, seconds),
        *_gradients(conditions.codecs),
        *_measured_outer(config, conditions, metrics),
    )


def compression_lines(rows: tuple[Compressed, ...], *, truth: str = "simulated") -> list[str]:
    """Return a table, nothing without compression; `truth` is that of its seconds."""
    if not rows:
        return []
    width = max(len(row.name) for row in rows)
    return [
        "",
        f"compressed (bytes of a step each way, seconds {truth})",
        *(_line(row, width) for row in rows),
    ]


def _line(row: Compressed, width: int) -> str:
    parts = [row.sent]
    if row.num_bytes is not None and row.plain_bytes is not None:
        parts.append(f"{row.num_bytes / 1e6:,.4g} MB in place of {row.plain_bytes / 1e6:,.4g}")
    if row.seconds is not None:
        parts.append(f"{row.seconds:.3g} s")
    parts.append("price in loss unknown" if row.gap is None else str(row.gap))
    return f"  {row.name:<{width}}  {'; '.join(parts)}"


def _boundaries(
    config: Config, plan: Plan, conditions: Conditions, seconds: Seconds
) -> Iterator[Compressed]:
    """Yield the boundaries of a pipeline; those of replicas that are cut alike together."""
    ranks = dict(bottlenecks_of(config.model))
    for cut in dict.fromkeys(pipeline.cut for pipeline in plan.pipelines):
        replicas = [n for n, pipeline in enumerate(plan.pipelines) if pipeline.cut == cut]
        kinds = plan.pipelines[replicas[0]].codecs
        kinds = kinds or (conditions.codecs.boundary,) * (len(cut) - 1)
        narrow = [ranks.get(sum(cut[: number + 1])) for number in range(len(kinds))]
        if set(kinds) <= {CodecKind.NONE} and set(narrow) <= {None}:
            continue
        for number, (kind, rank) in enumerate(zip(kinds, narrow, strict=True)):
            crossing = [_crossing(plan, conditions, n, number, kind) for n in replicas]
            yield Compressed(
                name=f"stage {number} to {number + 1}",
                sent=_sent(kind, rank, dim=config.model.dim),
                num_bytes=sum(sent for sent, _ in crossing),
                plain_bytes=sum(plain for _, plain in crossing),
                seconds=max(
                    seconds(n, number, sent)
                    for n, (sent, _) in zip(replicas, crossing, strict=True)
                ),
                gap=_boundary_gap(config, kind, rank),
            )


def _sent(kind: CodecKind, rank: int | None, *, dim: int) -> str:
    numbers = None if rank is None else f"{rank} of {dim} numbers"
    codec = None if kind is CodecKind.NONE else kind.value
    return ", ".join(filter(None, (numbers, codec))) or "all numbers"


def _boundary_gap(config: Config, kind: CodecKind, rank: int | None) -> Gap | None:
    if rank is None:
        return _NOT_COMPRESSED if kind is CodecKind.NONE else codec_gap(Codecs(boundary=kind))
    return rank_gap(config.model)


def _crossing(
    plan: Plan, conditions: Conditions, replica: int, number: int, kind: CodecKind
) -> tuple[float, float]:
    """Return the bytes that cross a boundary of a replica in a step, and those uncompressed."""
    codecs, pipeline = replace(conditions.codecs, boundary=kind), plan.pipelines[replica]
    ratio = codecs.boundary_ratio(conditions.activation_value_bytes)
    profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
    sent = profile.message_bytes(pipeline.cut)[number] * ratio
    return sent * pipeline.num_microbatches, profile.activation_bytes * pipeline.num_microbatches


def _ends(pipeline: Pipeline, boundary: int) -> tuple[int, int]:
    """Return the devices on both sides of a boundary."""
    before, after = (pipeline.devices[n % pipeline.num_ranks] for n in (boundary, boundary + 1))
    return before, after


def _measured_s(plan: Plan, trace: Trace) -> dict[tuple[int, int], float]:
    """Return the seconds of each replica and boundary in a step of a trace, the slower way."""
    periods: defaultdict[tuple[int, int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for sent, received in messages(trace):
        key = (sent.rank, min(sent.stage, received.stage), received.rank, sent.step)
        periods[key].append((max(sent.start_s, received.start_s), received.end_s))
    num_steps = max(1, len({span.step for span in trace.spans}))
    totals: defaultdict[tuple[int, int, int], float] = defaultdict(float)
    for (source, boundary, to, _), spans in periods.items():
        begins, ends = np.array(spans).T
        totals[source, boundary, to] += busy(np.minimum(begins, ends), ends)[0] / num_steps
    slower: defaultdict[tuple[int, int], float] = defaultdict(float)
    for (source, boundary, _), seconds in totals.items():
        key = (plan.replica(source), boundary)
        slower[key] = max(slower[key], seconds)
    return dict(slower)


def _measured_outer(
    config: Config, conditions: Conditions, metrics: Sequence[StepMetrics]
) -> Iterator[Compressed]:
    """Yield the outer loop, or deliveries, if there are and an outer step has ended."""
    meetings = [step for step in metrics if step.outer_bytes is not None]
    others = [step.step_s for step in metrics if step.outer_bytes is None]
    loop = config.quorum if config.quorum.is_on else config.outer
    if not loop.is_on or not meetings or not others:
        return
    longer_s = median(step.step_s for step in meetings) - median(others)
    sent = [float(step.outer_bytes or 0) for step in meetings]
    yield Compressed(
        name=_name(loop),
        sent=f"{_facts(loop)}, {sum(sent) / len(sent) / 1e6:,.4g} MB each time",
        seconds=max(0.0, longer_s),
        gap=_gap(loop, conditions),
    )


def _gradients(codecs: Codecs) -> Iterator[Compressed]:
    if codecs.gradients is not CodecKind.NONE:
        yield Compressed(
            name="gradients",
            sent=f"{codecs.gradients} across the root of each sync tree",
            gap=codec_gap(Codecs(gradients=codecs.gradients)),
        )


def _outer(config: Config, conditions: Conditions, times: OuterTimes) -> Compressed:
    outer = config.outer
    return Compressed(
        name=_name(outer),
        sent=f"{_facts(outer)}, of which {times.exposed_s(outer):.3g} s are not hidden",
        seconds=times.outer_s,
        gap=_gap(outer, conditions),
    )


def _deliveries(config: Config, conditions: Conditions) -> Iterator[Compressed]:
    """Yield what the run delivers to a merge server, if it is an island of its own."""
    quorum, profile = config.quorum, conditions.profile
    if not quorum.is_on:
        return
    parts = (profile.embed, *profile.layers, profile.head)
    values = sum(part.parameters if part.trained is None else part.trained for part in parts)
    sent = values * bytes_per_value(quorum.codec)
    yield Compressed(
        name=_name(quorum),
        sent=f"{_facts(quorum)}, {sent / 1e6:,.4g} MB to the merge server and "
        f"{values * _ANCHOR_BYTES / 1e6:,.4g} MB back each time, not counted in the step",
        gap=_gap(quorum, conditions),
    )


def _name(loop: OuterConfig | QuorumConfig) -> str:
    return "deliveries" if isinstance(loop, QuorumConfig) else "outer loop"


def _facts(loop: OuterConfig | QuorumConfig) -> str:
    codec = "" if loop.codec is CodecKind.NONE else f", {loop.codec}"
    return f"{loop.islands} islands, every {loop.every} steps{codec}"


def _gap(loop: OuterConfig | QuorumConfig, conditions: Conditions) -> Gap | None:
    return outer_gap(loop.islands, num_parameters=num_parameters(conditions))
