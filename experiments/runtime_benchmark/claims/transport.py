"""From a jax array to a jax array over `MpiTransport`, beside a raw mpi4py ping-pong.

Where the `same` array is sent each time, raw reads and writes two buffers that stay in the core's
cache; where what was `received` is sent on, both move their bytes through memory. Launches are
on the `pages` that the C library hands out by default, as a user of mpi4py gets them, and on large
ones, as `jaxpipe train` asks for them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from experiments.runtime_benchmark.claim import Bench, Claim, Row
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.tables import grouped, numbers
from jaxpipe.runtime.process.mpirun import MEMORY_SETTINGS, find_mpirun, launch_command

_PING_PONG = "experiments.runtime_benchmark.ping_pong"
_NUM_RANKS = 2
_PAGES = {"default": {"GLIBC_TUNABLES": ""}, "large": MEMORY_SETTINGS}


def measure(bench: Bench) -> list[Row]:
    """Return a row for each launch and size: raw and ours alternate within a launch."""
    case = bench.cases["transport"]
    arguments = [str(case["rounds"]), *map(str, case["sizes"])]
    pythons = {"this": Path(sys.executable)}
    if bench.mpich_python is not None:
        pythons["mpich"] = bench.mpich_python
    return [
        row
        for launch in range(case["launches"])
        for name, python in pythons.items()
        for pages, settings in _PAGES.items()
        for row in bench.once(
            {"launch": launch, "python": name, "pages": pages},
            partial(_launch, python, arguments, settings),
        )
    ]


def _launch(python: Path, arguments: Sequence[str], settings: Mapping[str, str]) -> list[Row]:
    """Return the rows of one launch."""
    mpirun = str(python.parent / "mpirun") if python != Path(sys.executable) else find_mpirun()
    command = [*launch_command(mpirun, num_ranks=_NUM_RANKS), str(python), "-m", _PING_PONG]
    output = subprocess.run(
        [*command, *arguments],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    result = json.loads(output.strip().splitlines()[-1])
    return [
        {
            "mpi": result["mpi"],
            "load": os.getloadavg()[0],
            "num_bytes": message["num_bytes"],
            "sends": message["sends"],
            "quantile": quantile,
            **message[quantile],
        }
        for message in result["messages"]
        for quantile in ("median", "fast")
    ]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return the medians over launches, by size."""
    return [
        {
            "mpi": mpi,
            "pages": pages,
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
        for (mpi, pages, num_bytes, sends, quantile), rows in _groups(raw).items()
    ]


def _groups(raw: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    return grouped(raw, "mpi", "pages", "num_bytes", "sends", "quantile")


def draw(raw: Sequence[Row], path: Path) -> None:
    """Draw the fraction of the raw bandwidth in every launch that sends on what it received."""
    bars(
        {
            f"{mpi}\n{int(num_bytes) // 1024} KiB\n{pages}": numbers(rows, "bandwidth_fraction")
            for (mpi, pages, num_bytes, sends, quantile), rows in _groups(raw).items()
            if sends == "received" and quantile == "median"
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
