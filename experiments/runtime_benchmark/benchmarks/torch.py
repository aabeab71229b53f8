"""Comparison with `torch.distributed.pipelining` on one and two cores: tokens/s and scaling."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.training import REPLICAS, Run, System, training_claim
from experiments.table import Row, grouped, numbers

_ALONE = (
    Run(system=System.ONE_DEVICE, how="parts", cores=1),
    Run(system=System.JAXPIPE, how=REPLICAS, cores=1, is_required=False),
    Run(system=System.TORCH, how="parts", cores=1),
)


def runs(cases: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs: both systems on one core, and on two with each schedule; ours alone."""
    pairs = (
        Run(system=system, how=how)
        for how in cases["torch"]["schedules"]
        for system in (System.JAXPIPE, System.TORCH)
    )
    ours = (
        Run(system=System.JAXPIPE, how=how, is_required=False)
        for how in cases["torch"]["of_jaxpipe"]
    )
    return (*_ALONE, *pairs, *ours)


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Compare both systems: the forms on one core, and a row per schedule on two.

    What PyTorch does not run stands beside its best on as many cores.
    """
    ours, theirs = _speeds(raw, is_torch=False), _speeds(raw, is_torch=True)
    alone, their_alone = _best(ours, "1"), _best(theirs, "1")
    rows = []
    for (cores, how), speed in ours.items():
        peer = theirs.get((cores, how)) or _best(theirs, cores)
        rows.append(
            {
                "cores": cores,
                "how": how,
                "jaxpipe_tokens_per_s": speed,
                "torch_tokens_per_s": peer,
                "ratio": speed / peer,
                "jaxpipe_scaling": speed / alone,
                "torch_scaling": peer / their_alone,
                "aim": "ratio > 1, better scaling" if cores != "1" else "",
            }
        )
    return rows


def _best(speeds: Mapping[tuple[str, ...], float], cores: str) -> float:
    return max(speed for (number, _), speed in speeds.items() if number == cores)


def _speeds(raw: Sequence[Row], *, is_torch: bool) -> dict[tuple[str, ...], float]:
    mine = [row for row in raw if (row["system"] == System.TORCH.value) == is_torch]
    return {
        key: median(numbers(rows, "tokens_per_s"))
        for key, rows in grouped(mine, "cores", "how").items()
    }


TORCH = training_claim(
    aim="more tokens/s than torch.distributed.pipelining, and better scaling to two cores",
    runs=runs,
    summarise=summarise,
    draw=bars(
        "system",
        "how",
        "cores",
        value="tokens_per_s",
        title="One core, and two with a pipeline (measured; a dot is a step)",
    ),
)
