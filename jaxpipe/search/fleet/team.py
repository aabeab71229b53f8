"""Teams: replicas of a plan that differ in their devices alone."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.plan.partition import Cut


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Team:
    """Replicas with one partition: `devices[replica, stage]`, `cut[stage]` layers."""

    devices: np.ndarray
    cut: Cut

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return len(self.devices)


def shared_out(first_s: np.ndarray, each_s: np.ndarray, total: int) -> np.ndarray:
    """Return the microbatches of each replica such that the last one ends soonest.

    A replica takes `first_s` for one microbatch and `each_s` for each further one; every replica
    has at least one. The end is found by bisection, so unequal fills count as well.

    >>> shared_out(np.array([1.0, 1.0, 5.0]), np.array([1.0, 2.0, 1.0]), 9).tolist()
    [5, 3, 1]
    """
    assert len(first_s) <= total, (len(first_s), total)

    def counts(end_s: float) -> np.ndarray:
        # The small part keeps a replica that ends exactly then.
        return np.maximum(1, np.floor((end_s - first_s) / each_s + 1e-9) + 1).astype(int)

    low_s, high_s = float(first_s.min()), float(first_s.max() + total * each_s.min())
    while high_s - low_s > 1e-9 * high_s:
        middle_s = (low_s + high_s) / 2
        if counts(middle_s).sum() >= total:
            high_s = middle_s
        else:
            low_s = middle_s
    found = counts(high_s)
    # Several replicas may end exactly then: those that end last give back what is too much.
    for _ in range(int(found.sum()) - total):
        ends_s = np.where(found > 1, first_s + (found - 1) * each_s, -np.inf)
        found[int(ends_s.argmax())] -= 1
    return found
