"""What a plan owes to links between regions that share nothing: its step with trunks instead.

A cluster file that names regions and states no trunk says that all connections between them go side
by side. Between most regions they do not. So the plan is simulated again with a trunk as fast as
one link, as is the plan that crosses least among the best of each shape::

                     links as stated     a trunk of one link each
    this plan                 15.7 s                       29.4 s
    crosses least             19.6 s                       21.0 s     the gain needs unshared links
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite

from jaxpipe.plan import Plan
from jaxpipe.search import Found, left_out
from jaxpipe.simulate import Conditions, plan_step, plan_step_s
from jaxpipe.topo import unshared_regions, with_trunks_of_one_pair

PREFERRED_WITHIN = 1.03
"""A plan that needs unshared links less may take so much longer, as the file states the links."""
_WORTH_A_WORD = 1.01
"""A step that trunks make longer than this is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkCost:
    """The shape of a plan, and its simulated seconds: links as stated, and with trunks."""

    shape: str
    step_s: float
    shared_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsharedLinks:
    """A plan whose step needs unshared links, and the one that crosses least, if it is another.

    `regions` are those between which most bytes cross.
    """

    regions: tuple[str, str]
    plan: TrunkCost
    least: TrunkCost | None

    @property
    def line(self) -> str:
        """What depends on unshared links, in one line."""
        source, destination = self.regions
        plan, least = self.plan, self.least
        text = (
            f"the cluster file has no `[[trunks]]` between {source} and {destination}: if all "
            f"connections share what one has, a step takes {plan.shared_s:.4g} s, not "
            f"{plan.step_s:.4g} s"
        )
        if least is not None:
            gain_s, shared_gain_s = least.step_s - plan.step_s, least.shared_s - plan.shared_s
            part = min(1.0, max(0.0, 1 - shared_gain_s / gain_s))
            text += (
                f", and {least.shape}, which crosses least, {least.shared_s:.4g} s, not "
                f"{least.step_s:.4g} s: {part:.0%} of the gain over it depends on this"
            )
        return text + "; state `capacity_gbps`"


def unshared_links(plan: Plan, result: Found, conditions: Conditions) -> UnsharedLinks | None:
    """Return what a plan owes to links between regions that the cluster states as unshared.

    None if trunks as fast as one link would not make its step longer by more than 1 %. This takes
    two simulations of a step, or four.
    """
    crossing = _crossing(plan, conditions)
    if not crossing:
        return None
    priced = _both_ways(plan, conditions)
    if priced.shared_s <= _WORTH_A_WORD * priced.step_s:
        return None
    others = [(sum(_crossing(other, conditions).values()), other) for other in _best_shapes(result)]
    num_bytes, other = min(others, key=lambda pair: pair[0], default=(float("inf"), plan))
    least = _both_ways(other, conditions) if num_bytes < sum(crossing.values()) else None
    return UnsharedLinks(
        regions=max(crossing, key=lambda way: crossing[way]),
        plan=priced,
        # One that is faster as well was left for a reason of its own, for example a codec.
        least=least if least is not None and least.step_s > priced.step_s else None,
    )


def suited_to_sharing(result: Found, conditions: Conditions) -> Found:
    """Return what was found with the plan that unshared links matter least to, of equal ones.

    Equal are the best plans of all shapes within 3 % of the best. Another one is taken where it is
    faster by more than that if links share trunks as fast as one of them.
    """
    if not _crossing(result.plan, conditions):
        return result
    limit = PREFERRED_WITHIN * result.value
    equal = [
        candidate.trial
        for candidate in result.of_choice("shape")
        if candidate.trial.value <= limit and candidate.trial.plan != result.plan
    ]
    if not equal:
        return result
    shared_s = {trial.plan: _shared_s(trial.plan, conditions) for trial in equal}
    best = min(equal, key=lambda trial: shared_s[trial.plan])
    if PREFERRED_WITHIN * shared_s[best.plan] >= _shared_s(result.plan, conditions):
        return result
    return replace(
        result,
        plan=best.plan,
        value=best.value,
        left_out=left_out(best.plan, len(conditions.cluster)),
    )


def _best_shapes(result: Found) -> Iterator[Plan]:
    """Yield the best plan of each shape that fits."""
    for candidate in result.of_choice("shape"):
        if isfinite(candidate.trial.value):
            yield candidate.trial.plan


def _crossing(plan: Plan, conditions: Conditions) -> dict[tuple[str, str], float]:
    """Return the bytes of a step between regions without a trunk."""
    ways = set(unshared_regions(conditions.cluster))
    if not ways:
        return {}
    crossing = plan_step(plan, conditions).bytes_between_regions()
    return {way: num_bytes for way, num_bytes in crossing.items() if way in ways}


def _both_ways(plan: Plan, conditions: Conditions) -> TrunkCost:
    return TrunkCost(
        shape=plan.shape,
        step_s=plan_step_s(plan, conditions),
        shared_s=_shared_s(plan, conditions),
    )


def _shared_s(plan: Plan, conditions: Conditions) -> float:
    shared = with_trunks_of_one_pair(conditions.cluster)
    return plan_step_s(plan, replace(conditions, cluster=shared))
