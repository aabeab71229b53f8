"""The seconds of a layout in closed form: a search values tens of thousands of them.

With c(s) the seconds of a microbatch on stage s of S, w(s) those of its message to the next stage,
M microbatches, r(s) the ring all-reduce of its gradients and u(s) its optimizer, 1F1B takes

    steady   the largest of c(s), w(s) and (c(s) + ... + c(S-1) + 2 (w(s) + ...)) / (S - s)
    step     (M - 1) steady + sum of (c + 2 w), and of the last stage to end also r(s) + u(s)

The third term is the round trip of the S - s microbatches that 1F1B keeps in flight. It is exact
for equal stages without messages, which a test holds, and only ranks otherwise.
"""

from itertools import accumulate, pairwise

from jaxpipe.search.layout.layout import Layout, Stage, facing, neighbours
from jaxpipe.search.layout.layout_step import LayoutCosts


def closed_form_s(layout: Layout, costs: LayoutCosts, *, batch: int) -> float:
    """Return the seconds of a step, as this module's docstring has them."""
    parts = [
        [costs.part(group, range(*ends), layout.microbatch) for group, _ in stage]
        for stage, ends in zip(layout.stages, pairwise([0, *accumulate(layout.cut)]), strict=True)
    ]
    compute_s = [max(part.forward_s + part.backward_s for part in stage) for stage in parts]
    wire_s = _wires_s(layout, costs)
    steady_s, trip_s = max(*compute_s, *wire_s), 0.0
    # From the last stage on: what a microbatch takes from a stage to the end and back.
    for behind, (stage_s, hop_s) in enumerate(zip(compute_s[::-1], wire_s[::-1], strict=True)):
        trip_s += stage_s + 2 * hop_s
        steady_s = max(steady_s, trip_s / (behind + 1))
    end_s = (layout.num_microbatches(batch) - 1) * steady_s + trip_s
    last_s = 0.0
    for stage, of_stage, hop_s in zip(layout.stages, parts, wire_s, strict=True):
        reduced_s = ring_s(stage, costs, 4 * max(part.num_gradients for part in of_stage))
        last_s = max(last_s, end_s + reduced_s + max(part.update_s for part in of_stage))
        # The next stage ends earlier, by the backward of this one and its message.
        end_s -= max(part.backward_s for part in of_stage) + hop_s
    return last_s


def ring_s(stage: Stage, costs: LayoutCosts, num_bytes: float) -> float:
    """Return the seconds of the all-reduce of a stage around the ring of its replicas."""
    num_replicas = sum(run.replicas for run in stage)
    if num_replicas == 1:
        return 0.0
    share = num_bytes / num_replicas
    pairs = {*neighbours(stage), (stage[-1].group, stage[0].group)}
    slowest = max(share / costs.gradient_rate(one, other, share) for one, other in pairs)
    return 2 * (num_replicas - 1) * slowest


def _wires_s(layout: Layout, costs: LayoutCosts) -> list[float]:
    """Return the seconds of the slowest message of each stage to the next; 0 after the last."""
    num_bytes = costs.output_bytes(layout.microbatch)
    wires_s = [
        max(
            num_bytes / costs.activation_rate(*pair, num_bytes)
            for a, b, _ in facing(one, other)
            for pair in ((a, b), (b, a))
        )
        for one, other in pairwise(layout.stages)
    ]
    return [*wires_s, 0.0]
