"""From a jax array to a jax array over `MpiTransport`, beside a raw mpi4py ping-pong.

Where the `same` array is sent each time, raw reads and writes two buffers that stay in the core's
cache; where what was `received` is sent on, both move their bytes through memory.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.processes import environment, launcher
from experiments.runtime_benchmark.tables import grouped, numbers

_PING_PONG = "experiments.runtime_benchmark.ping_pong"
_NUM_RANKS = 2


def measure(bench: Bench) -> list[Row]:
    """Return a row for each launch and size: raw and ours alternate within a launch."""
    case, rows = bench.cases["transport"], []
    arguments = [str(case["rounds"]), *map(str, case["sizes"])]
    command = [*launcher(_NUM_RANKS), sys.executable, "-m", _PING_PONG, *arguments]
    for launch in range(case["launches"]):
        output = subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=True
        ).stdout
        result = json.loads(output.strip().splitlines()[-1])
        rows += [
            {
                "mpi": result["mpi"],
                "launch": launch,
                "num_bytes": message["num_bytes"],
                "sends": message["sends"],
                "quantile": quantile,
                **message[quantile],
            }
            for message in result["messages"]
            for quantile in ("median", "fast")
        ]
    return rows


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return the medians over launches, by size."""
    return [
        {
            "num_bytes": num_bytes,
            "sends": sends,
            "quantile": quantile,
            "launches": len(rows),
            "raw_us": 1e6 * median(numbers(rows, "raw_s")),
            "ours_us": 1e6 * median(numbers(rows, "ours_s")),
            "over_raw_us": 1e6 * median(numbers(rows, "over_raw_s")),
            "bandwidth_fraction": median(numbers(rows, "bandwidth_fraction")),
            "aim": "over_raw_us <= 60" if int(num_bytes) <= 2**14 else "bandwidth_fraction >= 0.9",
        }
        for (num_bytes, sends, quantile), rows in _groups(raw).items()
    ]


def _groups(raw: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    return grouped(raw, "num_bytes", "sends", "quantile")


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the fraction of the raw bandwidth in every launch."""
    bars(
        {
            f"{int(num_bytes) // 1024} KiB\n{sends}\n{quantile}": numbers(
                rows, "bandwidth_fraction"
            )
            for (num_bytes, sends, quantile), rows in _groups(raw).items()
        },
        path,
        title="Bandwidth from jax array to jax array (measured; a dot is a launch; dashed: aim)",
        unit="fraction of raw mpi4py",
        aim=0.9,
    )


TRANSPORT = Claim(
    aim="90 % of the raw bandwidth at 1 and 16 MiB, at most 60 us over raw at 16 KiB",
    measure=measure,
    summarise=summarise,
    draw=draw,
    draws_raw=True,
)
