"""Bandwidth of `MpiTransport`, jax array to jax array, compared with a raw mpi4py ping-pong.

If the `same` array is sent each time, raw MPI reads and writes two buffers that stay in the core's
cache; if the `received` array is sent back, both move their bytes through memory. Launches use the
C library's default `pages`, as users of mpi4py get them, and large pages, as `jaxpipe train` sets.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.table import Row, grouped, numbers
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

_PING_PONG = "experiments.runtime_benchmark.programs.ping_pong"
_NUM_RANKS = 2
_PAGES = {"default": {"GLIBC_TUNABLES": ""}, "large": MEMORY_SETTINGS}


def measurements(bench: Bench) -> list[Measurement]:
    """Return a part per launch: a row per size. Raw and ours alternate within a launch."""
    case = bench.cases["transport"]
    arguments = [str(case["rounds"]), *map(str, case["sizes"])]
    pythons = {"this": Path(sys.executable)}
    if bench.mpich_python is not None:
        pythons["mpich"] = bench.mpich_python
    return [
        Measurement(
            columns={"launch": launch, "python": name, "pages": pages},
            measure=partial(_launch, python, arguments, settings),
        )
        for launch in range(case["launches"])
        for name, python in pythons.items()
        for pages, settings in _PAGES.items()
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
    """Return medians over launches, by size."""
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


TRANSPORT = Claim(
    aim="90 % of the raw bandwidth at 1 and 16 MiB, at most 60 us over raw at 16 KiB",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "mpi",
        "num_bytes",
        "pages",
        value="bandwidth_fraction",
        title="Bandwidth over raw mpi4py, jax array to jax array (measured; a dot is a launch)",
        aim=0.9,
        only={"sends": "received", "quantile": "median"},
    ),
)
