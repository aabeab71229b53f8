"""Find up to which size MPI sends at once, as root: `python -m experiments.idle_links.eager`.

A message takes a latency and its bytes. Above the eager limit it takes two latencies more, since
the sender first asks for the receive. TCP has no slow starts here. This measures the MPI of its
Python, Open MPI or MPICH, and writes `results/eager_openmpi.csv` or `results/eager_mpich.csv`.
"""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from experiments.idle_links.run import emulate
from experiments.table import Row, markdown, write_csv
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

_HERE = Path(__file__).parent
_PAUSE_S = "0.1"


def main() -> None:
    """Measure all settings of this MPI, and write its table."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    case = cases["eager"]
    ranks = launch_command(find_mpirun(), num_ranks=2)
    mpi = "openmpi" if "--oversubscribe" in ranks else "mpich"
    rows = [
        row for name in case["remedies"][mpi] for row in _rows(case, cases["remedies"][name], ranks)
    ]
    write_csv(rows, _HERE / "results" / f"eager_{mpi}.csv")
    print(markdown(rows))


def _rows(case: Mapping[str, Any], remedy: Mapping[str, Any], ranks: tuple[str, ...]) -> list[Row]:
    sizes = case["sizes"]
    numbers = (_PAUSE_S, ",".join(map(str, sizes)), str(case["num_messages"]), "1")
    program = (sys.executable, "-m", "experiments.idle_links.bursts", "cold", *numbers)
    printed = emulate(case["cluster"], remedy, (*ranks, *program))
    bursts = json.loads(next(line for line in printed.splitlines() if line.startswith("[[")))
    return [
        {
            "settings": remedy["name"],
            "bytes": size,
            "measured_s": f"{median(burst):.4f}",
            "lowest_s": f"{min(burst):.4f}",
            "at_once_s": f"{at_once_s(case, size):.4f}",
            "latencies_more": f"{(median(burst) - at_once_s(case, size)) / case['latency_s']:.1f}",
            "load": f"{os.getloadavg()[0]:.0f}",
        }
        for size, burst in zip(sizes, bursts, strict=True)
    ]


def at_once_s(case: Mapping[str, Any], num_bytes: int) -> float:
    """Return the seconds of a message without a rendezvous: a latency, and its bytes."""
    return case["latency_s"] + num_bytes / case["bytes_per_s"]


if __name__ == "__main__":
    main()
