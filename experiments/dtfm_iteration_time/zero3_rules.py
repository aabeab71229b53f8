"""Compare rules for ZeRO-3: `python -m experiments.dtfm_iteration_time.zero3_rules`.

DeepSpeed's settings in the published runs are unknown. A rule is one combination of plausible ones.
That of `jaxpipe.simulate.zero3_step` was chosen among them by its errors in cases 1 to 4, so this
chooses again without each case in turn. It writes the errors of the chosen rules to
`results/zero3_rules.csv`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from experiments.dtfm_iteration_time.published import CLUSTERS, Cell, cells
from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.baselines.published.compute_times import durations
from jaxpipe.baselines.published.dtfm_launch_order import launch_order
from jaxpipe.baselines.published.rings import all_gather_s
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.simulate import dtfm_constants

_RESULTS = Path(__file__).parent / "results"
_DEVICES = 64
_LIVE_LAYERS = 1e9 / (12 * 2048**2)
_BUCKET_BYTES = 2 * 5e8
_MATRICES = (3, 1, 4, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One combination of settings.

    `stay` are the layers that a forward and a backward need not gather, in units of the billion
    parameters; `reductions` the bytes of a reduction in units of an all-gather's.
    """

    samples: int
    stay: tuple[float, float]
    reductions: int
    by_matrix: bool
    overlaps: bool


RULES = tuple(
    Rule(samples=samples, stay=stay, reductions=reductions, by_matrix=matrix, overlaps=overlaps)
    for samples, stay, reductions, matrix, overlaps in product(
        (2, 4, 8),
        ((0.0, 0.0), (0.0, 0.5), (0.5, 0.5), (0.0, 1.0), (1.0, 1.0)),
        (1, 2),
        (False, True),
        (False, True),
    )
)
CHOSEN = Rule(samples=4, stay=(1.0, 1.0), reductions=2, by_matrix=True, overlaps=False)
"""The rule of `zero3_step`."""


def main() -> None:
    """Choose a rule on all cases, and without each, and write the errors."""
    measured = [cell for cell in cells() if cell.system == "zero_s3"]
    errors = {rule: _medians(rule, measured) for rule in RULES}
    assert best(errors, tuple(CLUSTERS)) == CHOSEN, best(errors, tuple(CLUSTERS))
    rows = [_row("none", CHOSEN, errors)]
    for case in CLUSTERS:
        chosen = best(errors, [each for each in CLUSTERS if each != case])
        rows.append(_row(str(case), chosen, errors))
    write_csv(rows, _RESULTS / "zero3_rules.csv")
    print(f"{len(RULES)} rules (simulated)\n\n{markdown(rows)}")


def best(errors: Mapping[Rule, Mapping[int, float]], cases: Sequence[int]) -> Rule:
    """Return the rule with the smallest sum of the cases' median errors."""
    return min(errors, key=lambda rule: sum(errors[rule][case] for case in cases))


def seconds(rule: Rule, cluster: str, *, layers: int, batch: int) -> float:
    """Return the simulated seconds of a step."""
    gather_s = sum(_ring_s(cluster, count * 2048**2 * 2) for count in _MATRICES)
    if not rule.by_matrix:
        gather_s = _ring_s(cluster, sum(_MATRICES) * 2048**2 * 2)
    gradients = Workload(num_layers=layers, batch=1).gradient_bytes(layers, is_first=True)
    bucket = min(gradients, _BUCKET_BYTES)
    reduce_s = gradients / bucket * _ring_s(cluster, rule.reductions * bucket)
    rings_s = [max(0.0, layers - part * _LIVE_LAYERS) * gather_s for part in rule.stay]
    computes_s = [rule.samples * each for each in _compute_s(cluster, layers)]
    together = max if rule.overlaps else _sum
    pass_s = together(computes_s[0], rings_s[0]) + together(computes_s[1], rings_s[1] + reduce_s)
    return batch / (_DEVICES * rule.samples) * pass_s


def _sum(first: float, second: float) -> float:
    return first + second


@cache
def _ring_s(name: str, num_bytes: float) -> float:
    cluster = topo.load(name)
    return all_gather_s(
        cluster,
        [launch_order(cluster)],
        num_bytes / _DEVICES,
        nic_efficiency=dtfm_constants().network.nic_efficiency,
    )


@cache
def _compute_s(name: str, layers: int) -> tuple[float, float]:
    """Return the seconds of a sample's forward and backward on the slowest device."""
    cluster, workload = topo.load(name), Workload(num_layers=layers, batch=1)
    found = durations(
        cluster,
        tuple((device,) for device in launch_order(cluster)),
        (layers,),
        workload=workload,
        speeds=dtfm_constants().speeds(workload.precision),
    )
    return max(found.forward_s), max(found.backward_s)


def _medians(rule: Rule, measured: Sequence[Cell]) -> dict[int, float]:
    errors: dict[int, list[float]] = defaultdict(list)
    for cell in measured:
        found_s = seconds(rule, CLUSTERS[cell.case], layers=cell.layers, batch=cell.batch)
        errors[cell.case].append(abs(found_s / cell.seconds - 1))
    return {case: float(np.median(each)) for case, each in errors.items()}


def _row(left_out: str, rule: Rule, errors: Mapping[Rule, Mapping[int, float]]) -> Row:
    return {
        "left out": left_out,
        "samples": rule.samples,
        "stay in forward, backward": " ".join(f"{each:g}" for each in rule.stay),
        "bytes of a reduction": rule.reductions,
        "gathers by": "matrix" if rule.by_matrix else "layer",
        "overlaps": "yes" if rule.overlaps else "no",
        **{f"case {case}": f"{100 * each:.1f} %" for case, each in errors[rule].items()},
    }


if __name__ == "__main__":
    main()
