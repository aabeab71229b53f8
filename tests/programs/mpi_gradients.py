"""One rank of an MPI job: compute the gradients of some cases, and save them for the test."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from jaxpipe.comm import BARRIER_TAG, barrier
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.schedule import ScheduleKind
from tests.oracles.one_device import draw_tokens
from tests.runtime.pipelined import compile_all, gradients_of_rank, make_uneven_plan, ops_of

_COMPILE_S = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan to try; a replica has its own entry in `cuts` and `microbatches`.

    With more than one compute in flight the host is ahead of the device, as of a GPU.
    """

    schedule: ScheduleKind
    cuts: tuple[tuple[int, ...], ...]
    microbatches: tuple[int, ...]
    chunks: int = 1
    in_flight: int = 1

    def plan(self) -> Plan:
        return make_uneven_plan(
            schedule=self.schedule,
            cuts=self.cuts,
            num_microbatches=self.microbatches,
            tied=True,
            num_chunks=self.chunks,
        )

    def file(self, folder: Path, rank: int) -> Path:
        """Return the file of the results of a rank: its gradients, and with `.json` its totals."""
        return folder / f"{CASES.index(self)}-{rank}.safetensors"


_GPIPE, _PLAIN, _EAGER, _INTERLEAVED, _ZB_H1, _ZB_H2 = ScheduleKind
_CUTS = (1, 4), (5,)
# Each schedule, over unlike replicas; tests in one process try many more partitions, and what they
# compile a rank reads from the cache.
CASES = (
    Case(schedule=_GPIPE, cuts=_CUTS, microbatches=(1, 3), in_flight=3),
    Case(schedule=_PLAIN, cuts=_CUTS, microbatches=(3, 1)),
    Case(schedule=_EAGER, cuts=_CUTS, microbatches=(8, 2)),
    Case(schedule=_ZB_H1, cuts=_CUTS, microbatches=(2, 3), in_flight=2),
    Case(schedule=_ZB_H2, cuts=_CUTS, microbatches=(8, 1)),
    Case(
        schedule=_INTERLEAVED,
        cuts=((1, 2, 1, 1), (1, 4)),
        microbatches=(4, 3),
        chunks=2,
        in_flight=4,
    ),
)
NUM_RANKS = 3


def main(folder: Path) -> None:
    transport = MpiTransport()
    try:
        for case in CASES:
            _save(case, transport, case.file(folder, transport.rank))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()


def _save(case: Case, transport: MpiTransport, file: Path) -> None:
    plan = case.plan()
    tokens = draw_tokens(num_samples=plan.batch)
    # Replicas compile for unlike times, and a message may not wait as long as that.
    ops = ops_of(plan)
    compile_all(plan, ranks=[transport.rank], ops=ops)
    barrier(transport, tag=BARRIER_TAG, timeout_s=_COMPILE_S)
    write_result(
        file, *gradients_of_rank(transport, plan, tokens, ops=ops, in_flight=case.in_flight)
    )


def write_result(file: Path, gradients: dict[str, np.ndarray], totals: StepTotals) -> None:
    """Write what a rank has computed."""
    save_file(gradients, file)
    file.with_suffix(".json").write_text(json.dumps(asdict(totals)))


def read_result(file: Path) -> tuple[dict[str, np.ndarray], StepTotals]:
    """Return what a rank has written: where the oracle is compiled once, and not by every rank."""
    return load_file(file), StepTotals(**json.loads(file.with_suffix(".json").read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
