"""One rank of an MPI job: compute the gradients of some cases, and judge them."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.schedule import ScheduleKind
from tests.oracles.one_device import MICROBATCH, draw_tokens, worst_error
from tests.runtime.pipelined import gradients_of_rank, make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan to try."""

    schedule: ScheduleKind
    cut: tuple[int, ...]
    replicas: int
    microbatches: int
    tied: bool
    chunks: int = 1

    @property
    def num_ranks(self) -> int:
        return len(self.cut) // self.chunks * self.replicas


_GPIPE, _PLAIN, _EAGER, _INTERLEAVED, _ZB_H1, _ZB_H2 = ScheduleKind
CASES = (
    Case(schedule=_PLAIN, cut=(1, 4), replicas=1, microbatches=3, tied=True),
    Case(schedule=_GPIPE, cut=(5,), replicas=2, microbatches=3, tied=True),
    Case(schedule=_EAGER, cut=(1, 4), replicas=1, microbatches=8, tied=False),
    Case(schedule=_GPIPE, cut=(1, 4), replicas=2, microbatches=3, tied=True),
    Case(schedule=_PLAIN, cut=(1, 4), replicas=2, microbatches=8, tied=True),
    Case(schedule=_EAGER, cut=(1, 2, 1, 1), replicas=1, microbatches=8, tied=False),
    Case(schedule=_PLAIN, cut=(1, 2, 1, 1), replicas=1, microbatches=1, tied=False),
    Case(schedule=_ZB_H2, cut=(1, 4), replicas=1, microbatches=8, tied=True),
    Case(schedule=_ZB_H1, cut=(1, 4), replicas=2, microbatches=3, tied=True),
    Case(schedule=_INTERLEAVED, cut=(1, 2, 1, 1), replicas=1, microbatches=4, tied=True, chunks=2),
    Case(schedule=_PLAIN, cut=(2, 1, 2), replicas=2, microbatches=3, tied=True),
    Case(schedule=_EAGER, cut=(2, 1, 2), replicas=2, microbatches=8, tied=True),
)


def main(folder: Path) -> None:
    transport = MpiTransport()
    try:
        report = {}
        for number, case in enumerate(CASES):
            if case.num_ranks == transport.num_ranks:
                report[number] = {**asdict(case), "error": _error(case, transport)}
        (folder / f"{transport.rank}.json").write_text(json.dumps(report))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()


def _error(case: Case, transport: MpiTransport) -> float:
    plan = make_plan(
        schedule=case.schedule,
        cut=case.cut,
        num_replicas=case.replicas,
        num_microbatches=case.microbatches,
        tied=case.tied,
        num_chunks=case.chunks,
    )
    tokens = draw_tokens(num_samples=case.replicas * case.microbatches * MICROBATCH)
    gradients, totals = gradients_of_rank(transport, plan, tokens)
    return worst_error(gradients, totals, tokens, tied=case.tied)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
