"""A codec for each boundary between stages: what a fast link need not compress keeps its precision.

::

    boundary    0-1    1-2    2-3    3-4         the fastest links first: the longest such row
    message     1 ms   2 ms   9 ms   80 ms       of gentler codecs that makes the step no slower
    codec       none   none   bf16   int8
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from jaxpipe.collective import CodecKind, CodecLimit, codecs_within
from jaxpipe.collective.codec.codecs import bytes_per_value
from jaxpipe.network import lone_message_s
from jaxpipe.plan import Plan
from jaxpipe.simulate import Conditions, extrapolated_step_s

ENOUGH = 1.01
"""A harder codec has to save more than a hundredth of a step: simulations are no more exact."""


def with_boundary_codecs(plan: Plan, conditions: Conditions, limit: CodecLimit) -> Plan:
    """Return the plan with its own codec for each boundary between stages, within the limit.

    It is the gentlest of all boundaries with which a step is within 1 % of the fastest, and
    gentler still where links are fast. Gradients have the codec of the conditions. A plan with
    several stages per rank is returned as it is.
    """
    if plan.num_chunks > 1:
        return plan
    kinds = codecs_within(limit, for_gradients=False)
    settings = {
        kind: replace(conditions, codecs=replace(conditions.codecs, boundary=kind))
        for kind in kinds
    }
    bare = plan.of_each(codecs=())
    seconds = {kind: extrapolated_step_s(bare, each) for kind, each in settings.items()}
    enough_s = ENOUGH * min(seconds.values())
    kind = next(kind for kind in kinds if seconds[kind] <= enough_s)
    relaxed = with_gentler_boundaries(bare, settings[kind], enough_s=enough_s)
    if relaxed.has_codecs:
        return relaxed
    order = list(boundary_messages(plan, conditions))
    return _with_kinds(plan, order, [kind] * len(order))


def with_gentler_boundaries(plan: Plan, conditions: Conditions, *, enough_s: float) -> Plan:
    """Return the plan with gentler codecs where links are fast, if a step takes `enough_s` then.

    The conditions have the codec of all boundaries, which those keep that need it. Boundaries are
    ordered by the seconds of a message that has the network for itself; as many as possible have no
    codec, as many as possible of the others the gentlest, and so on. Each number is found by
    bisection, as if more gentle boundaries never made a step faster. A plan with several stages per
    rank, or whose boundaries all need the codec, is returned as it is.

    Cost: a short simulation for each halving of the boundaries and each codec.
    """
    hardest = conditions.codecs.boundary
    if hardest is CodecKind.NONE or plan.num_chunks > 1:
        return plan
    order = sorted(boundary_messages(plan, conditions))
    kinds, num_eased, best = [hardest] * len(order), 0, plan
    for gentler in codecs_within(CodecLimit.ANY, for_gradients=False):
        if bytes_per_value(gentler) <= bytes_per_value(hardest):
            break
        # The slowest boundary keeps the codec that was chosen for its sake.
        low, high = num_eased, len(order) - 1
        while low < high:
            end = (low + high + 1) // 2
            eased = [*kinds[:num_eased], *[gentler] * (end - num_eased), *kinds[end:]]
            trial = _with_kinds(plan, order, eased)
            if extrapolated_step_s(trial, conditions) <= enough_s:
                low, best = end, trial
            else:
                high = end - 1
        kinds[num_eased:low] = [gentler] * (low - num_eased)
        num_eased = low
    return best


def boundary_messages(plan: Plan, conditions: Conditions) -> Iterator[tuple[float, int, int]]:
    """Yield the seconds of a message over each boundary, its replica and the stage before it."""
    for replica, pipeline in enumerate(plan.pipelines):
        profile = conditions.profile.scaled(microbatch=pipeline.microbatch)
        hops = zip(pairwise(pipeline.devices), profile.message_bytes(pipeline.cut), strict=True)
        for stage, (hop, num_bytes) in enumerate(hops):
            both = (hop, (hop[1], hop[0]))
            message_s = max(
                lone_message_s(conditions.cluster, pair, num_bytes=num_bytes) for pair in both
            )
            yield message_s, replica, stage


def _with_kinds(
    plan: Plan, order: Sequence[tuple[float, int, int]], kinds: Sequence[CodecKind]
) -> Plan:
    """Return the plan with these codecs of the boundaries in this order."""
    of = {(replica, stage): kind for (_, replica, stage), kind in zip(order, kinds, strict=True)}
    return replace(
        plan,
        pipelines=tuple(
            replace(each, codecs=tuple(of[replica, stage] for stage in range(each.num_stages - 1)))
            for replica, each in enumerate(plan.pipelines)
        ),
    )
