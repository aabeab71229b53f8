"""The codecs of a plan: the gentlest of those with which its simulated step is fastest.

A choice begins with a pair, of a codec for all messages between stages and one for the gradients
across the root of each sync tree. All pairs within the limit are simulated::

    none    messages as they are
    safe    bf16, int8: measured, they cost no more loss than another seed does
    any     also int4 and rotated3, and top-k of gradients, which did cost loss

Only a hierarchical all-reduce has a codec, across the root of each sync tree: for it a plan changes
its all-reduce, and its trees where flat ones, all of whose messages are compressed, are faster.
Then boundaries whose links are fast enough get a gentler codec than the others, each of its own
(`jaxpipe.propose.boundary_codecs`).

fp8 was measured as safe too, but has the bytes of int8, and a choice by time would never take it.
Encoding and decoding take the seconds of one core of a host. Seconds of long steps are extrapolated
from their first microbatches: they are compared with each other alone.

By default seconds of a step decide. A `price` of codecs is a factor on them: of steps that make up
for a loss, for example.

Source of the limits: `experiments/codecs`, a small model over 120 steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

from jaxpipe.collective import AllReduceKind, CodecKind, CodecLimit, Codecs, codecs_within, ranks
from jaxpipe.collective.sync_tree import flat
from jaxpipe.plan import Plan
from jaxpipe.propose.boundary_codecs import (
    ENOUGH,
    with_gentler_boundaries,
)
from jaxpipe.search import Found
from jaxpipe.simulate import Conditions, extrapolated_step_s

Price: TypeAlias = Callable[[Codecs], float]


def no_price(_: Codecs) -> float:
    """Return the factor of codecs that cost nothing but their seconds."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTrial:
    """A pair of codecs, the plan with an all-reduce for them, and its simulated seconds."""

    codecs: Codecs
    plan: Plan
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    """The chosen codecs among all trials, the plan for them, and the seconds of its step.

    `codecs.boundary` is the hardest between stages; some boundaries of the plan may have gentler
    ones. Without codecs, a step takes `plain_s`, and `other_plain_s` with the best plan that a
    search without codecs found.
    """

    plan: Plan
    codecs: Codecs
    step_s: float
    plain_s: float
    other_plain_s: float
    trials: tuple[CodecTrial, ...]


def strongest(limit: CodecLimit) -> Codecs:
    """Return the codecs with the fewest bytes within the limit.

    >>> print(strongest(CodecLimit.SAFE), "|", strongest(CodecLimit.NONE))
    int8 between stages, int8 for gradients | no codecs
    """
    return Codecs(
        boundary=codecs_within(limit, for_gradients=False)[-1],
        gradients=codecs_within(limit, for_gradients=True)[-1],
    )


def choose_codecs(
    plan: Plan, conditions: Conditions, limit: CodecLimit, *, price: Price = no_price
) -> CodecChoice:
    """Return the gentlest codecs within the limit that are within 1 % of the best.

    Cost: some short simulations for each pair, of which there are up to 30.
    """
    compressible = _compressible(plan)
    if limit is not CodecLimit.NONE:
        # What another all-reduce gains alone, no codec has gained.
        plan = _trial((plan, *compressible), Codecs(), conditions).plan
    trials = tuple(
        _trial((plan,) if codecs.gradients is CodecKind.NONE else compressible, codecs, conditions)
        for codecs in _pairs(plan, conditions, limit)
    )
    best = gentlest(trials, price)
    plain_s = trials[0].step_s
    compressed = replace(conditions, codecs=best.codecs)
    plan = with_gentler_boundaries(
        best.plan, compressed, enough_s=_enough(trials, price) / price(best.codecs)
    )
    return CodecChoice(
        plan=plan,
        codecs=best.codecs,
        step_s=extrapolated_step_s(plan, compressed),
        plain_s=plain_s,
        other_plain_s=plain_s,
        trials=trials,
    )


def suited_to_codecs(plan: Plan, conditions: Conditions) -> Plan:
    """Return the plan with the all-reduce that the codec of gradients needs, if there is one."""
    if conditions.codecs.gradients is CodecKind.NONE:
        return plan
    return _trial(_compressible(plan), conditions.codecs, conditions).plan


def gentlest(trials: Sequence[CodecTrial], price: Price = no_price) -> CodecTrial:
    """Return the first trial within 1 % of the best; the gentlest come first."""
    enough = _enough(trials, price)
    return next(trial for trial in trials if price(trial.codecs) * trial.step_s <= enough)


def _enough(trials: Sequence[CodecTrial], price: Price) -> float:
    """Return the seconds of a step, times its price, that are as good as the least."""
    return ENOUGH * min(price(trial.codecs) * trial.step_s for trial in trials)


def with_codecs(
    limit: CodecLimit,
    conditions: Conditions,
    find: Callable[[Conditions, float], Found],
    *,
    seconds: float,
    price: Price = no_price,
) -> tuple[Found, CodecChoice]:
    """Return what a search finds, and the codecs of its plan within the limit.

    Half of the `seconds` search without codecs, half with the strongest ones: with fewer bytes
    other plans are the fastest.

    Raises:
        PlanError: no plan fits.
    """
    settings = (conditions, replace(conditions, codecs=strongest(limit)))
    results = [find(setting, seconds / len(settings)) for setting in settings]
    choices = [choose_codecs(result.plan, conditions, limit, price=price) for result in results]
    # Of equal steps the plan that was found without codecs.
    best = min(
        range(len(results)),
        key=lambda index: price(choices[index].codecs) * choices[index].step_s,
    )
    return results[best], replace(choices[best], other_plain_s=choices[0].plain_s)


def _compressible(plan: Plan) -> tuple[Plan, ...]:
    """Return the plan with all-reduces that have a codec: along its trees, and along flat ones.

    Only messages across the root of a tree are compressed: few in a chain, all in a flat tree.
    """
    along = replace(plan, all_reduce=AllReduceKind.HIERARCHICAL)
    return along, replace(
        along,
        sync=tuple(flat(ranks(tree)) for tree in plan.sync),
        sync_shared=flat(ranks(plan.sync_shared)) if plan.shares_embedding else plan.sync_shared,
    )


def _trial(plans: Sequence[Plan], codecs: Codecs, conditions: Conditions) -> CodecTrial:
    """Return the fastest of these plans with these codecs, the first of equal ones."""
    compressed = replace(conditions, codecs=codecs)
    trials = [
        CodecTrial(codecs=codecs, plan=each, step_s=extrapolated_step_s(each, compressed))
        for each in plans
    ]
    return min(trials, key=lambda each: each.step_s)


def _pairs(plan: Plan, conditions: Conditions, limit: CodecLimit) -> Iterator[Codecs]:
    """Yield the pairs that matter for a plan, the gentlest first; without codecs comes first."""
    boundaries = codecs_within(limit, for_gradients=False)
    gradients = codecs_within(limit, for_gradients=True)
    if all(pipeline.num_ranks == 1 for pipeline in plan.pipelines):
        boundaries = boundaries[:1]
    if plan.num_replicas == 1 and not plan.shares_embedding:
        gradients = gradients[:1]

    gentlest_first = list(codecs_within(limit, for_gradients=True))

    def harshness(pair: tuple[CodecKind, CodecKind]) -> tuple[int, int]:
        ranks = [gentlest_first.index(codec) for codec in pair]
        return max(ranks), sum(ranks)

    for boundary, gradient in sorted(product(boundaries, gradients), key=harshness):
        codecs = Codecs(boundary=boundary, gradients=gradient)
        ratios = (
            (boundary, codecs.boundary_ratio(conditions.activation_value_bytes)),
            (gradient, codecs.far_ratio(conditions.gradient_bytes)),
        )
        # Activations in bfloat16 gain nothing by a codec that rounds to it.
        if all(codec is CodecKind.NONE or ratio < 1 for codec, ratio in ratios):
            yield codecs
