"""The rematerialisation of a plan, chosen with it: one search for each policy.

::

    none    all residuals are kept                      the most memory, two forwards a backward
    dots    those of matrix products are kept
    full    the input of each layer is kept             the least memory, three forwards a backward

What a policy saves lets a pipeline be shorter, or a microbatch larger; what it costs is computed
again in every backward. All plans of a search have one policy: `train.remat` is that of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from jaxpipe.errors import PlanError
from jaxpipe.propose.request import PlanRequest
from jaxpipe.schedule import Remat

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RematTrial:
    """A policy, and the seconds of a step of the best plan found with it; None if none fits."""

    remat: Remat
    step_s: float | None

    def __str__(self) -> str:
        """Return the policy with its seconds.

        >>> print(RematTrial(remat=Remat.DOTS, step_s=1.5))
        dots 1.5 s
        """
        seconds = "does not fit" if self.step_s is None else f"{self.step_s:.4g} s"
        return f"{self.remat} {seconds}"


def best_remat(
    request: PlanRequest,
    found: Callable[[PlanRequest], _T],
    *,
    cost: Callable[[_T], float],
    step_s: Callable[[_T], float],
) -> tuple[Remat, _T, tuple[RematTrial, ...]]:
    """Return the policy whose plan costs least, what was `found` with it, and all trials.

    Each policy has its share of the seconds of the request. Of equal costs the one that computes
    least again wins: element-wise work is not counted.

    Raises:
        PlanError: no plan fits with any policy.
    """
    policies = tuple(Remat)
    results: list[tuple[Remat, _T]] = []
    trials: list[RematTrial] = []
    refusal: PlanError | None = None
    for remat in policies:
        single = replace(
            request, remat=remat, search_remat=False, budget=request.budget / len(policies)
        )
        try:
            result = found(single)
        except PlanError as error:
            refusal = refusal or error
            trials.append(RematTrial(remat=remat, step_s=None))
            continue
        results.append((remat, result))
        trials.append(RematTrial(remat=remat, step_s=step_s(result)))
    if not results:
        assert refusal is not None, request
        raise refusal
    remat, best = min(results, key=lambda each: cost(each[1]))
    return remat, best, tuple(trials)
