"""One rank of an MPI job: gradients of a stage over a mesh of this rank's devices, judged."""

import json
import sys
from pathlib import Path

from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.schedule import ScheduleKind
from tests.oracles.one_device import MICROBATCH, draw_tokens, worst_error
from tests.runtime.pipelined import gradients_of_rank, make_plan

CASES = (
    (MeshConfig(data=2), ScheduleKind.ONE_F_ONE_B),
    (MeshConfig(tensor=2), ScheduleKind.ZB_H1),
    (MeshConfig(data=2, tensor=2), ScheduleKind.ZB_H1),
    (MeshConfig(tensor=2, sequence_parallel=True), ScheduleKind.ZB_H1),
    (MeshConfig(data=2, context=2, sharded=True), ScheduleKind.ONE_F_ONE_B),
)
NUM_MICROBATCHES = 3


def main(folder: Path) -> None:
    transport = MpiTransport()
    try:
        errors = [_error(transport, *case) for case in CASES]
        (folder / f"{transport.rank}.json").write_text(json.dumps(errors))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()


def _error(transport: MpiTransport, mesh: MeshConfig, schedule: ScheduleKind) -> float:
    plan = make_plan(
        schedule=schedule,
        cut=(2, 3),
        num_replicas=1,
        num_microbatches=NUM_MICROBATCHES,
        tied=True,
    )
    tokens = draw_tokens(num_samples=NUM_MICROBATCHES * MICROBATCH)
    ops = {instruction.op for program in plan.train_schedule() for instruction in program}
    gradients, totals = gradients_of_rank(
        transport, plan, tokens, mesh=mesh, loop=Loop.SCAN, ops=ops
    )
    return worst_error(gradients, totals, tokens, tied=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
