"""The order of the published layouts: jaxpipe's simulator against the judge.

Kendall's tau counts pairs of layouts of the same scenario: those in the same order less those in
the other, over all. Layouts with unequal numbers of replicas are not simulated.

The judge reduces gradients in buckets of 500 MB, and gives each GPU of a node one stream at the
speed that a stream has alone. Ours reduces a stage at once, and takes the number of streams that
the table has as the fastest. `JudgedLinks` does as the judge does, so that what is left is the
order of computes and messages.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from experiments.sailor.planned import own_step_s
from experiments.sailor.predict import KNOWN_BEFORE, ProfiledCosts
from experiments.sailor.published import judged_plans, model, scenarios
from experiments.table import Row
from jaxpipe.search.layout import Group, Layout, layout_step
from jaxpipe.simulate import simulate_ends

APART = 0.005
"""Layouts that the judge has closer together than this are equal for the second tau."""


_BUCKET_BYTES = 5e8


class JudgedLinks(ProfiledCosts):
    """The costs of a layout whose all-reduces have the judge's buckets and streams."""

    def __init__(self, layout: Layout, model_name: str) -> None:
        super().__init__(model(model_name), KNOWN_BEFORE)
        self._most_bytes = _BUCKET_BYTES / layout.num_replicas

    def gradient_rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of a bucket's message, of all GPUs of the nodes together."""
        num_bytes = min(num_bytes / one.tensor, self._most_bytes)
        curve = self.curve(one, other, streams=1)
        rate = one.tensor * num_bytes / curve.seconds(num_bytes)
        return min(rate, KNOWN_BEFORE.gradient_bytes_per_s)


def order_rows() -> list[Row]:
    """Return the seconds of each layout: the judge's, and ours with three kinds of messages."""
    rows: list[Row] = []
    for each in judged_plans():
        replicas = {sum(run.replicas for run in stage) for stage in each.layout.stages}
        if len(replicas) > 1:
            continue
        scenario = scenarios()[each.scenario]
        rows.append(
            {
                "scenario": each.scenario,
                "planner": each.planner,
                "judged_s": each.step_s,
                "blocking_s": own_step_s(each.layout, scenario, blocking=True),
                "overlapping_s": own_step_s(each.layout, scenario, blocking=False),
                "judged_links_s": judged_links_s(each.layout, scenario.model, scenario.batch),
            }
        )
    return rows


def judged_links_s(layout: Layout, model_name: str, batch: int) -> float:
    """Return the seconds of a step with blocking messages and the judge's all-reduces."""
    costs = JudgedLinks(layout, model_name)
    return simulate_ends(layout_step(layout, costs, batch=batch, blocking=True)).last_s


def turned_pairs(rows: Sequence[Row], column: str) -> Iterator[Row]:
    """Yield the pairs that a column does not order as the judge does, with both differences."""
    for one, other in combinations(rows, 2):
        judged, ours = (float(one[name]) - float(other[name]) for name in ("judged_s", column))
        if one["scenario"] != other["scenario"] or judged == 0 or judged * ours > 0:
            continue
        yield {
            "scenario": one["scenario"],
            "pair": f"{one['planner']}, {other['planner']}",
            "messages": column.removesuffix("_s"),
            "judged": judged / float(other["judged_s"]),
            "ours": ours / float(other[column]),
        }


def kendall_tau(rows: Sequence[Row], column: str, *, apart: float = 0.0) -> float:
    """Return tau of a column against the judge, over pairs that are further apart than a part.

    >>> rows = [{"scenario": "a", "judged_s": n, "ours": n * n} for n in (1.0, 2.0, 3.0)]
    >>> kendall_tau(rows, "ours"), kendall_tau([*rows[:2], {**rows[2], "ours": 2.0}], "ours")
    (1.0, 0.3333333333333333)
    """
    score = num = 0
    for one, other in combinations(rows, 2):
        judged = float(one["judged_s"]) - float(other["judged_s"])
        nearer = min(float(one["judged_s"]), float(other["judged_s"]))
        if one["scenario"] != other["scenario"] or abs(judged) <= apart * nearer:
            continue
        ours = float(one[column]) - float(other[column])
        num += 1
        score += (judged * ours > 0) - (judged * ours < 0)
    return score / num
