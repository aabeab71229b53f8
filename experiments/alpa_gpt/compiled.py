"""Compile cases in this process: `python -m experiments.alpa_gpt.compiled`, JSON in, JSON out.

A request is a list of cases with their targets; `jaxpipe.baselines.autoshard.hlo.run_python` starts
this module with enough devices.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.alpa_gpt.published import Case
from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    compile_step,
    count_collectives,
    target_devices,
)
from jaxpipe.baselines.autoshard.spmd import (
    Combining,
    NamedStep,
    abstract_arrays,
    baseline,
    initial_state,
    placed,
    sharded_step,
    train_step,
)
from jaxpipe.baselines.autoshard.strategy import (
    MeshShape,
    ZeroLevel,
    jax_mesh,
)
from jaxpipe.baselines.gpt.alpa_gpt import AlpaGpt
from jaxpipe.baselines.gpt.tables_by_columns import SPLIT_BY_COLUMNS, whole_embeddings
from jaxpipe.models import GptConfig, load_preset

_NAMES = ("state.params", "state", "tokens", "targets")
_RESULTS = ("state.params", "state")


def main() -> None:
    """Compile every case of the request, and print the compiler's figures as one line."""
    request = json.loads(sys.stdin.read())
    print(json.dumps([_answer(each) for each in request]))


def config_of(case: Case) -> GptConfig:
    """Return the model of a case."""
    fields = {**load_preset("alpa-6.7b"), "num_layers": case.layers, "compute_dtype": case.dtype}
    return GptConfig(**fields)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    target = CompileTarget(request.pop("target"))
    by_layout, by_columns = request.pop("by_layout"), request.pop("tables_by_columns", False)
    case = Case(**request)
    model, optimizer = AlpaGpt(config_of(case)), optax.adam(1e-4)
    mesh = MeshShape(dp=case.dp, op=case.op)
    state = jax.eval_shape(
        lambda key: initial_state(model, optimizer, key, dtype=case.dtype), jax.random.key(0)
    )
    shape = (case.batch, model.sequence)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    zero = ZeroLevel.GRADIENTS if case.reduce_scatter else ZeroLevel.NONE
    split = {**model.split, **(SPLIT_BY_COLUMNS if by_columns else {})}
    strategy = baseline(state, shape, shape, mesh=mesh, split=split, zero=zero)
    params = state.pop("params")
    whole_step = train_step(model, optimizer, remat=case.remat)

    def step(params: Any, rest: Any, tokens: Any, targets: Any) -> Any:
        """Take a step like Alpa's: no loss is returned, and the old parameters are not donated."""
        new = whole_step({"params": params, **rest}, tokens, targets)[0]
        return new.pop("params"), new

    arguments = (params, state, tokens, tokens)
    if by_columns:
        strategy = replace(strategy, operators=whole_embeddings(step, arguments))
    devices = target_devices(target, num_devices=mesh.num_devices)
    run = sharded_step(
        NamedStep(run=step, names=_NAMES, result_names=_RESULTS),
        arguments,
        strategy,
        devices=devices,
        donated=(1,),
        combining=Combining(by_layout=by_layout),
    )
    shardings = placed(arguments, strategy.arguments, jax_mesh(mesh, devices), names=_NAMES)
    compiled = compile_step(run, abstract_arrays(arguments, shardings), target)
    return {
        "counts": count_collectives(compiled.collectives),
        "collectives": [
            [each.ring_bytes(mesh.num_devices), each.group or mesh.num_devices]
            for each in compiled.collectives
        ],
        "arguments": compiled.memory.arguments,
        "peak": compiled.memory.peak,
        "compile_s": compiled.compile_s,
        "asynchronous": len(compiled.asynchronous),
        "overlapped": sum(each.num_beside > 0 for each in compiled.asynchronous),
    }


if __name__ == "__main__":
    main()
