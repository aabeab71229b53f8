"""One rank of the executions of `paced`, which starts the ranks."""

import argparse
from pathlib import Path

from experiments.sailor.paced import SCENARIO, TABLE, Disputed, disputed
from experiments.table import Row, write_csv
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.paced import Outcome, Scale, execute
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.simulate import simulate_ends

_TIMEOUT_S = 600.0
_SCALE = Scale(time=3.0)
"""Real seconds per emulated second: forty ranks share the cores of one machine."""


def main() -> None:
    """Execute all layouts; rank 0 prints a row after each, and writes the table at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    die_with_parent()
    transport, rows = MpiTransport(), []
    for each in disputed(options.results):
        for blocking in (False, True):
            job = each.step(blocking=blocking)
            outcome = execute(job, transport, scale=_SCALE, timeout_s=_TIMEOUT_S)
            if outcome is not None:
                simulated_s = simulate_ends(job).last_s
                rows.append(_row(each, outcome, blocking=blocking, simulated_s=simulated_s))
                print(*rows[-1].values(), sep=" | ", flush=True)
    if transport.rank == 0:
        write_csv(rows, options.results / TABLE, number=".5g")
    transport.close()


def _row(each: Disputed, outcome: Outcome, *, blocking: bool, simulated_s: float) -> Row:
    return {
        "scenario": SCENARIO,
        "planner": each.planner,
        "ranks": each.num_ranks,
        "messages": "blocking" if blocking else "overlapping",
        "truth": "emulated, paced",
        "judged_s": each.judged_s(),
        "simulated_s": simulated_s,
        "paced_s": outcome.step_s,
        "paced / judged": outcome.step_s / each.judged_s(),
        "paced / simulated": outcome.step_s / simulated_s,
        "messages late, mean ms": 1e3 * outcome.network.mean_s,
        "messages late, most ms": 1e3 * outcome.network.largest_s,
    }


if __name__ == "__main__":
    main()
