"""One rank of an MPI job: the losses of each sharded system, all in one process."""

import json
import sys
from pathlib import Path

import msgspec

from jaxpipe import topo
from jaxpipe.baselines.autoshard.spmd.distributed import join, leave
from jaxpipe.baselines.compare.sharded_rank import Ranks, run_sharded
from jaxpipe.baselines.compare.system import Executor
from jaxpipe.baselines.systems import System
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.config import config_from, job_from
from jaxpipe.models import GptConfig
from jaxpipe.propose.resolve import plan_from

SYSTEMS = (System.DDP, System.ZERO3, System.MEGATRON)
"""Horovod is DDP with larger buckets, and this model fits into one of either."""
WITH_EXPERTS = (System.GSHARD, System.DEEPSPEED_MOE, System.FASTMOE, System.HIDUP)


def main(tree: Path) -> None:
    config = config_from(json.loads(tree.read_text()))
    plan = plan_from(config)
    job = job_from(config, plan)
    assert isinstance(config.model, GptConfig)
    has_experts = config.model.experts > 0
    transport = MpiTransport()
    try:
        devices = join(transport, timeout_s=60.0)
        ranks = Ranks(transport=transport, devices=devices, cluster=topo.load(config.plan.cluster))
        found = {
            system.value: run_sharded(system, job, ranks, observe=lambda _: None)[1:]
            for system in (WITH_EXPERTS if has_experts else SYSTEMS)
        }
        # Its collectives as messages of this transport, on a thread.
        by_host = System.HIDUP if has_experts else System.ZERO3
        found["host"] = run_sharded(
            by_host, job, ranks, observe=lambda _: None, executor=Executor.HOST
        )[1:]
        leave()
        path = tree.with_name(f"{transport.rank}.json")
        path.write_bytes(msgspec.json.encode(found))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
