"""The transport that a configuration asks for, and what is said where it cannot be had."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.comm import LocalTransport, ShapedTransport, Transport, run_ranks
from jaxpipe.comm.nccl import NcclBinding, NcclTransport
from jaxpipe.plan import Plan, default_plan
from jaxpipe.runtime.open_transport import (
    choose_transport,
    open_transport,
    pipeline_pairs,
)
from jaxpipe.runtime.run_config import RunConfig, TransportKind
from jaxpipe.schedule import ScheduleKind
from tests.comm.nccl.fake import FakeBinding, World
from tests.plan_section import decided

CLUSTER = topo.load("two-region")
RUN = RunConfig(folder="runs/x", timeout_s=20.0)


def plan_of(*, stages: int, replicas: int) -> Plan:
    config = decided(cluster="two-region", stages=stages, replicas=replicas)
    return default_plan(config, CLUSTER, num_layers=4, batch=8, tied=False)


@pytest.mark.parametrize("kind", TransportKind)
def test_a_rank_alone_may_use_any(kind: TransportKind):
    transport = open_transport(
        replace(RUN, transport=kind), plan_of(stages=1, replicas=1), CLUSTER, is_launched=False
    )
    assert isinstance(transport, ShapedTransport) == (kind is TransportKind.SHAPED)
    like = jax.ShapeDtypeStruct((3,), np.dtype(np.float32))
    receiving = transport.receive(like, source=0, tag=0)
    transport.send(np.ones(3, np.float32), to=0, tag=0)
    assert receiving.wait(timeout_s=5.0).sum() == 3
    transport.close()


def test_without_a_gpu_all_ranks_use_mpi_and_one_says_why(caplog: pytest.LogCaptureFixture):
    run, plan = replace(RUN, transport=TransportKind.NCCL), plan_of(stages=2, replicas=2)
    with caplog.at_level(logging.WARNING):
        kinds = run_ranks(4, lambda base: type(choose_transport(run, plan, CLUSTER, base=base)))
    assert kinds == [LocalTransport] * 4
    (record,) = caplog.records
    assert record.getMessage() == (
        "`run.transport` is nccl, but messages go over MPI, through host memory: rank 0: jax has "
        "no NVIDIA GPU here, its platform is cpu; install jaxpipe[cuda12] or jaxpipe[cuda13]"
    )


@pytest.mark.parametrize("without", [None, 2])
def test_all_ranks_use_nccl_or_none_does(caplog: pytest.LogCaptureFixture, without: int | None):
    world, plan = World(), plan_of(stages=2, replicas=2)
    run = replace(RUN, transport=TransportKind.NCCL)

    def work(base: Transport) -> type:
        def find_nccl() -> NcclBinding | str:
            return "no GPU" if base.rank == without else FakeBinding(world)

        transport = choose_transport(run, plan, CLUSTER, base=base, find_nccl=find_nccl)
        array = jnp.arange(4, dtype=jnp.float32)
        like = jax.ShapeDtypeStruct((4,), np.dtype(np.float32))
        receiving = transport.receive(like, source=base.rank ^ 1, tag=0)
        transport.send(array, to=base.rank ^ 1, tag=0).wait(timeout_s=20.0)
        np.testing.assert_array_equal(receiving.wait(timeout_s=20.0), array)
        transport.close()
        return type(transport)

    kinds = run_ranks(4, work)
    assert kinds == [NcclTransport if without is None else LocalTransport] * 4
    assert len(world.wires) == (4 if without is None else 0)
    assert ("rank 2: no GPU" in caplog.text) == (without is not None)


def test_chunks_join_the_last_rank_of_a_pipeline_to_the_first():
    plan = replace(
        plan_of(stages=2, replicas=2).of_each(cut=(1, 1, 1, 1)),
        num_chunks=2,
        schedule=ScheduleKind.INTERLEAVED,
    )
    assert pipeline_pairs(plan) == ((0, 1), (1, 0), (2, 3), (3, 2))
    assert pipeline_pairs(plan_of(stages=1, replicas=4)) == ()
