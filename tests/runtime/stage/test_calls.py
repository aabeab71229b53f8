"""All implementations of `StageCalls` offer the same calls; functions and executables agree."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxpipe.paced.paced_stage import PacedStage
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.calls import StageCalls, StageSpec
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.mesh import ONE_DEVICE
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.zero1 import OptimizerShard
from jaxpipe.schedule import Op
from tests.oracles.one_device import MICROBATCH, SEQUENCE
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.stage.one_step import stage_functions, step

pytestmark = pytest.mark.slow


def jitted(functions: StageFunctions) -> Any:
    """Return the functions under `jit`, as they are: without it, 285 operations compile."""
    called = {name for name in vars(StageCalls) if not name.startswith("_")} - {"spec"}
    each = {name: jax.jit(getattr(functions, name)) for name in called}
    return SimpleNamespace(spec=functions.spec, **each)


@pytest.mark.parametrize(("index", "shards"), [(0, ()), (1, (OptimizerShard(index=0, count=2),))])
def test_functions_and_executables_compute_the_same(index: int, shards: tuple[OptimizerShard, ...]):
    functions = stage_functions(index, shards=shards)
    plain = step(jitted(functions))
    compiled = step(compile_stage_once(functions, ops=tuple(Op)))
    assert jax.tree.structure(plain) == jax.tree.structure(compiled)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), plain, compiled
    )


def test_stages_share_the_executables_that_read_the_same():
    functions = stage_functions(1)
    larger = replace(functions, work=replace(functions.work, batch=4))
    shared = replace(functions, stage=replace(functions.stage, shares_embedding=True))
    one, *others = (
        compile_stage_once(each, ops=(Op.BACKWARD,)).executables
        for each in (functions, larger, shared)
    )
    names = [{name for name in one if one[name] is other[name]} for other in others]
    computed = {"cast_layer", "zeros", "forward", "evaluate", "backward"}
    assert names == [{*computed, "init", "pack", "square_norm"}, computed]


def test_a_stage_refuses_what_it_was_not_compiled_for():
    stage = compile_stage_once(stage_functions(0), ops=(Op.FORWARD, Op.BACKWARD))
    _, residuals = stage.forward(
        stage.cast(stage.init()[0]),
        np.zeros((MICROBATCH, SEQUENCE), np.int32),
        None,
        np.zeros(2, np.int32),
    )
    with pytest.raises(AssertionError, match="compiled for a schedule that splits no backward"):
        stage.backward_input({}, residuals, np.zeros(1))
    with pytest.raises(AssertionError, match="'join', 'is compiled for'"):
        stage.join((np.zeros(1),), {})


def test_products_have_the_precision_that_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    seen: list[str | None] = []
    loss = Stage.apply

    def traced(*arguments: Any, **options: Any) -> Any:
        seen.append(jax.default_matmul_precision.value)
        return loss(*arguments, **options)

    monkeypatch.setattr(Stage, "apply", traced)
    for precision in MatmulPrecision:
        # Not `compile_stage_once`: it has to be traced here.
        compile_stage(stage_functions(1), ops=(Op.FORWARD,), precision=precision)
        assert {*seen} == {precision.jax_name}
        seen.clear()
    assert jax.default_matmul_precision.value is None


def test_cpus_compute_the_same_with_either_precision():
    full = compile_stage_once(stage_functions(1), ops=Op, precision=MatmulPrecision.FLOAT32)
    plain = compile_stage_once(stage_functions(1), ops=Op)
    jax.tree.map(np.testing.assert_array_equal, step(full), step(plain))


def test_every_implementation_has_all_calls():
    names = {name for name in vars(StageCalls) if not name.startswith("_")}
    assert len(names) > 1
    for kind in (StageFunctions, CompiledStage, PacedStage):
        missing = names - set(dir(kind))
        assert not missing, (kind, missing)
    functions = stage_functions(0)
    assert isinstance(functions, StageCalls)
    assert isinstance(functions.spec, StageSpec)
    assert functions.spec.layout is ONE_DEVICE
