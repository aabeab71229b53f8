"""Against `torch.distributed.pipelining`, on one core and on two: tokens/s, and how they scale."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.tables import grouped, numbers
from experiments.runtime_benchmark.training import Run, System, of

_ALONE = (
    Run(system=System.ONE_DEVICE, how="parts", cores=1),
    Run(system=System.TORCH, how="parts", cores=1),
)


def runs(cases: Mapping[str, Any]) -> tuple[Run, ...]:
    """Return the runs that this claim looks at: each way of ours beside theirs."""
    pairs = (
        Run(system=system, how=how)
        for how in cases["torch"]["schedules"]
        for system in (System.JAXPIPE, System.TORCH)
    )
    return (*_ALONE, *pairs)


def measure(bench: Bench) -> list[Row]:
    """Return a row for each measured step."""
    return of(bench.training(), runs(bench.cases))


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return ours beside theirs: a row for one core, and one for each schedule on two."""
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


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the speed of every step."""
    groups = grouped(raw, "cores", "how", "system")
    bars(
        {
            f"{'torch' if system == System.TORCH else 'jax'}\n{how} x{cores}": numbers(
                rows, "tokens_per_s"
            )
            for (cores, how, system), rows in sorted(groups.items())
        },
        path,
        title="One core (x1), and two with a pipeline (measured; a dot is a step)",
        unit="tokens/s",
    )


TORCH = Claim(
    aim="more tokens/s than torch.distributed.pipelining, and better scaling to two cores",
    runs=runs,
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
