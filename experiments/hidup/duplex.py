"""Measure a duplex against the same strategy without it, on two ranks over an emulated link.

The link is so fast that communication takes about as long as compute. Products and messages are
real; only the link is emulated. Each rank computes with one thread.

    python -m experiments.hidup.duplex          compute as fast as it is
    python -m experiments.hidup.duplex 4        each segment of products takes 4 times as long,
                                                most of it asleep: for a machine that others use
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from experiments.table import Row, markdown, write_csv
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

_RANK = (sys.executable, "-P", "-m", "experiments.hidup.duplex_rank")
_TIMEOUT_S = 900.0
_ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run both ranks, and write and print the table."""
    pace = sys.argv[1] if len(sys.argv) > 1 else "0"
    process = subprocess.run(
        [*launch_command(find_mpirun(), num_ranks=2), *_RANK, pace],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
        env=os.environ | _ONE_THREAD | {"PYTHONPATH": str(Path.cwd())},
    )
    found = json.loads(process.stdout.strip().splitlines()[-1])
    truth = "emulated" if float(pace) else "measured"
    rows = [row(name, found, truth) for name in ("whole", "duplex")]
    _RESULTS.mkdir(exist_ok=True)
    write_csv(rows, _RESULTS / f"duplex_{truth}.csv")
    print(markdown(rows))
    whole, halves = (median(found[name]["measured_s"]) for name in ("whole", "duplex"))
    print(f"\nwithout the duplex / with it: {whole / halves:.2f} ({truth})")


def row(name: str, found: Mapping[str, Any], truth: str) -> Row:
    """Return the row of one way to run the step."""
    one = found[name]
    measured = sorted(one["measured_s"])
    simulated = one["simulated_s"]
    return {
        "step": name,
        "collectives": one["num_collectives"],
        f"compute s ({truth})": f"{one['computed_s']:.3f}",
        "links s (emulated)": f"{one['moved_s']:.3f}",
        "simulated s": f"{simulated:.3f}",
        f"median s ({truth})": f"{median(measured):.3f}",
        "from s": f"{measured[0]:.3f}",
        "to s": f"{measured[-1]:.3f}",
        f"{truth} / simulated": f"{median(measured) / simulated:.2f}",
        "loss": f"{one['loss']:.6f}",
        "load": f"{os.getloadavg()[0]:.0f}",
    }


if __name__ == "__main__":
    main()
