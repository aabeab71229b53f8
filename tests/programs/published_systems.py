"""Run one step of each published system on emulated devices, and compare with one device."""

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import jax

from jaxpipe.baselines.autoshard.duplex.duplex_systems import strategy_of
from jaxpipe.baselines.autoshard.duplex_step import realized
from jaxpipe.baselines.autoshard.spmd import (
    HostProgram,
    NamedStep,
    baseline,
    run_program,
    trace_host_program,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, ZeroLevel
from jaxpipe.baselines.gpt.model_names import model_names
from jaxpipe.baselines.gpt.model_sizes import duplex_graph
from jaxpipe.baselines.systems import System
from jaxpipe.models.gpt import Gpt
from tests.programs.priced_collectives import (
    BATCH,
    GRADIENTS,
    HASTY,
    apart,
    data,
    on_one_device,
    small,
    state_of,
)


def main() -> None:
    """Run every case of the request."""
    print(json.dumps([_run(**case) for case in json.loads(sys.stdin.read())]))  # noqa: T201


def _run(
    system: str,
    devices: int,
    bucket_bytes: float = math.inf,
    fields: dict[str, Any] | None = None,
    reference: dict[str, Any] | None = None,
    *,
    other: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a system on a model with these fields, and one device on one with those of `reference`.

    How far it is from a model with the fields of `other` is returned too.
    """
    config = replace(small("switch").config, **(fields or {}))
    arguments = (state_of(Gpt(config)), *data())
    step = NamedStep(
        run=train_step(Gpt(config), GRADIENTS, remat=False),
        names=("state", "tokens", "targets"),
        result_names=("state", "loss"),
    )
    strategy = _strategy(System(system), Gpt(config), step, arguments, devices)
    ran = run_program(step, arguments, strategy, num_steps=1, compiler_options=HASTY)

    def distance(fields: dict[str, Any] | None) -> float:
        wanted, _ = on_one_device(Gpt(replace(config, **(fields or {}))))
        return max(jax.tree.leaves(jax.tree.map(apart, ran.states[0], wanted)))

    whole = program = trace_host_program(step, arguments, strategy, rank=0)
    if bucket_bytes < math.inf:
        program = trace_host_program(step, arguments, strategy, rank=0, bucket_bytes=bucket_bytes)
    return {
        "apart": distance(reference),
        "apart_from_other": 0.0 if other is None else distance(other),
        "collectives": Counter(each.primitive for each in program.collectives),
        "whole": _sums(whole),
        "buckets": _sums(program),
    }


def _sums(program: HostProgram) -> list[int]:
    """Return the bytes of each all-reduce."""
    return [each.num_bytes for each in program.collectives if each.primitive == "psum"]


def _strategy(system: System, gpt: Gpt, step: NamedStep, arguments: Any, devices: int) -> Strategy:
    if system in (System.DDP, System.HOROVOD, System.ZERO3):
        shapes = (arguments[1].shape, arguments[2].shape)
        zero = ZeroLevel.PARAMETERS if system is System.ZERO3 else ZeroLevel.NONE
        mesh = MeshShape(dp=devices, op=1)
        return baseline(arguments[0], *shapes, mesh=mesh, split={}, zero=zero)
    graph = duplex_graph(gpt.config, batch=BATCH, dtype="float32")
    return realized(
        step,
        arguments,
        graph=graph,
        decisions=strategy_of(system, graph, num_devices=devices),
        names=model_names(gpt.config),
        num_devices=devices,
    )


if __name__ == "__main__":
    main()
