"""Comparison with `torch.distributed.pipelining` on one and two cores: tokens/s and scaling."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.training import Run, System, training_claim
from experiments.table import Row, grouped, numbers

_ALONE = (
    Run(system=System.ONE_DEVICE, how="parts", cores=1),
    Run(system=System.TORCH, how="parts", cores=1),
)


def runs(cases: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs: both systems on one core, and with each schedule on two."""
    pairs = (
        Run(system=system, how=how)
        for how in cases["torch"]["schedules"]
        for system in (System.JAXPIPE, System.TORCH)
    )
    return (*_ALONE, *pairs)


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Compare both systems: a row for one core, and a row per schedule on two."""
    ours, theirs = _speeds(raw, is_torch=False), _speeds(raw, is_torch=True)
    return [
        {
            "cores": cores,
            "how": how,
            "jaxpipe_tokens_per_s": ours[cores, how],
            "torch_tokens_per_s": theirs[cores, how],
            "ratio": ours[cores, how] / theirs[cores, how],
            "jaxpipe_scaling": ours[cores, how] / ours["1", "parts"],
            "torch_scaling": theirs[cores, how] / theirs["1", "parts"],
            "aim": "ratio > 1, better scaling" if cores != "1" else "",
        }
        for cores, how in ours
    ]


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
