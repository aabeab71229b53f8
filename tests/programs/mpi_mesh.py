"""One rank of an MPI job: save the gradients of a stage over a mesh of this rank's devices."""

import sys
from pathlib import Path

import numpy as np

from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.schedule import ScheduleKind
from tests.oracles.one_device import MICROBATCH, draw_tokens
from tests.programs.mpi_gradients import write_result
from tests.runtime.pipelined import gradients_of_rank, make_plan, ops_of

# Whole backwards and split ones, and each axis of a mesh, beside another one.
CASES = (
    (MeshConfig(data=2, tensor=2), ScheduleKind.ZB_H1),
    (MeshConfig(tensor=2, sequence_parallel=True), ScheduleKind.ZB_H1),
    (MeshConfig(data=2, context=2, sharded=True), ScheduleKind.ONE_F_ONE_B),
)
NUM_MICROBATCHES = 3


def main(folder: Path) -> None:
    transport = MpiTransport()
    try:
        for number, case in enumerate(CASES):
            write_result(file_of(folder, transport.rank, number), *_gradients(transport, *case))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()


def file_of(folder: Path, rank: int, number: int) -> Path:
    """Return the file of the results of a rank for a case."""
    return folder / f"{number}-{rank}.safetensors"


def tokens() -> np.ndarray:
    """Return the samples of a step."""
    return draw_tokens(num_samples=NUM_MICROBATCHES * MICROBATCH)


def _gradients(
    transport: MpiTransport, mesh: MeshConfig, schedule: ScheduleKind
) -> tuple[dict[str, np.ndarray], StepTotals]:
    plan = make_plan(
        schedule=schedule,
        cut=(2, 3),
        num_replicas=1,
        num_microbatches=NUM_MICROBATCHES,
        tied=True,
    )
    return gradients_of_rank(transport, plan, tokens(), mesh=mesh, loop=Loop.SCAN, ops=ops_of(plan))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
