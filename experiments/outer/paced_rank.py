"""One rank of the emulations of `paced`, which starts the ranks."""

import argparse

from experiments.outer.paced import TABLE, Case, cases, missing
from experiments.table import Row, append_csv
from jaxpipe.comm import BARRIER_TAG, Transport, barrier
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.paced import Outcome, Scale, execute, planned_all_reduces, planned_outer
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.simulate import plan_step

_TIMEOUT_S = 600.0


def main() -> None:
    """Emulate all missing cases; rank 0 writes a row after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("time_scale", type=float)
    given = parser.parse_args()
    die_with_parent()
    transport = MpiTransport()
    left = missing(cases())
    for number, case in enumerate(left, 1):
        outcome = _execute(case, transport, scale=Scale(time=given.time_scale))
        if outcome is not None:
            row = _row(case, outcome)
            append_csv(row, TABLE)
            print(f"{number}/{len(left)}", *row.values(), sep=" | ", flush=True)
    # Ranks without a part in the last case would wait for the others no longer than for a close.
    barrier(transport, tag=BARRIER_TAG, timeout_s=_TIMEOUT_S)
    transport.close()


def _execute(case: Case, transport: Transport, *, scale: Scale) -> Outcome | None:
    job, outer = plan_step(case.plan, case.conditions), None
    if case.outer is not None:
        every = case.outer.every
        # From one outer step to the next, in a run that goes on after them; not the first ones, as
        # eager updates wait for their first sum an outer step later.
        after = every if case.outer.eager else case.outer.delay
        outer = planned_outer(
            case.plan,
            case.conditions,
            case.outer,
            num_steps=4 * every,
            executed=2 * every + after,
        )
    all_reduces = planned_all_reduces(case.plan, case.conditions)
    return execute(
        job, transport, scale=scale, all_reduces=all_reduces, outer=outer, timeout_s=_TIMEOUT_S
    )


def _row(case: Case, outcome: Outcome) -> Row:
    simulated_s, ends_s = case.simulated_s(), outcome.ends_s
    paced_s = outcome.step_s
    if case.outer is not None:
        every = case.outer.every
        paced_s = (ends_s[-1] - ends_s[-1 - every]) / every
    return {
        "cluster": case.cluster,
        "ranks": case.plan.num_ranks,
        "batch": case.batch,
        "loop": case.loop,
        "inner steps": 1 if case.outer is None else case.outer.every,
        "truth": "emulated, paced",
        "simulated_s": simulated_s,
        "paced_s": paced_s,
        "paced / simulated": paced_s / simulated_s,
        "messages late, mean ms": 1e3 * outcome.network.mean_s,
    }


if __name__ == "__main__":
    main()
