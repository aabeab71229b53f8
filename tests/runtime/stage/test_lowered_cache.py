"""What was lowered once is not traced again, and is found by all that it depends on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.runtime.blas.chosen_products import by_xla
from jaxpipe.runtime.process.compile_cache import variables_of_cache
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage import lowered_cache
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, stage_compiler
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.lowered_cache import LoweredCache, LoweredFor
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig, OptimizerName
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.tree_form import UnknownNodeError, form_of, tree_of
from jaxpipe.runtime.stage.zero1 import OptimizerShard
from jaxpipe.schedule import Op
from tests.oracles.one_device import tiny_gpt
from tests.runtime.stage.one_step import stage_functions, step

pytestmark = pytest.mark.slow

NAMES = ("init", "cast", "cast_layer", "forward", "backward", "backward_weight", "pack", "update")


@pytest.fixture
def lowered(tmp_path: Path) -> LoweredCache:
    folder = variables_of_cache(tmp_path / "compiled")
    return LoweredCache(environment={"XDG_CACHE_HOME": str(tmp_path), **folder})


def files(lowered: LoweredCache) -> list[Path]:
    return files_in(Path(lowered.environment["XDG_CACHE_HOME"]))


def files_in(caches: Path) -> list[Path]:
    folder = caches / "jaxpipe" / "compiled" / "lowered"
    return sorted(folder.iterdir()) if folder.is_dir() else []


@contextmanager
def counted_traces() -> Iterator[list[str]]:
    """List the functions of stages that are traced meanwhile."""
    traced: list[str] = []

    def counted(name: str) -> Any:
        function = getattr(StageFunctions, name)

        def call(*arguments: Any, **options: Any) -> Any:
            traced.append(name)
            return function(*arguments, **options)

        return call

    with patch.multiple(StageFunctions, **{name: counted(name) for name in NAMES}):
        yield traced


def traces(lowered: LoweredCache, functions: StageFunctions, **options: Any) -> set[str]:
    """Return what is traced when a stage is compiled."""
    with counted_traces() as traced:
        compile_stage(functions, **{"ops": tuple(Op), "lowered": lowered, **options})
    return set(traced)


@pytest.mark.parametrize(("index", "shards"), [(0, ()), (1, (OptimizerShard(index=0, count=2),))])
def test_the_second_start_traces_nothing_and_computes_the_same(
    lowered: LoweredCache, index: int, shards: tuple[OptimizerShard, ...]
):
    functions = stage_functions(index, shards=shards)
    expected = step(compile_stage(functions, ops=tuple(Op), lowered=lowered))
    with counted_traces() as traced:
        stage = compile_stage(functions, ops=tuple(Op), lowered=lowered)
    assert not traced
    jax.tree.map(np.testing.assert_array_equal, expected, step(stage))
    without = step(compile_stage(functions, ops=tuple(Op)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), expected, without
    )


def test_programs_have_the_names_of_functions_and_read_only_what_they_need(lowered: LoweredCache):
    functions = stage_functions(0)
    kept = [compile_stage(functions, ops=tuple(Op), lowered=lowered) for _ in range(2)][-1]
    plain = compile_stage(functions, ops=tuple(Op))

    def inputs(stage: CompiledStage, name: str) -> str:
        text = stage.executables[name].as_text()
        assert text is not None, name
        return text.split("\n", 1)[0].split("->")[0]

    assert kept.executables.keys() == plain.executables.keys()
    for name in kept.executables:
        assert inputs(kept, name) == inputs(plain, name)
        assert inputs(kept, name).startswith(f"HloModule jit_{name},")


def test_a_part_is_traced_again_where_something_that_it_reads_differs(
    lowered: LoweredCache, monkeypatch: pytest.MonkeyPatch
):
    functions = stage_functions(1)
    everything = {"init", "cast_layer", "forward", "backward", "backward_weight", "pack", "update"}
    assert traces(lowered, functions) >= everything
    assert not traces(lowered, functions)
    longer = replace(functions, work=replace(functions.work, num_steps=7))
    assert traces(lowered, longer) == {"update"}
    remade = replace(functions.optimizer, learning_rate=0.5)
    assert "update" in traces(lowered, replace(functions, optimizer=remade))
    model = replace(functions.stage, model=tiny_gpt(tied=False))
    assert traces(lowered, replace(functions, stage=model)) >= everything
    assert traces(lowered, functions, precision=MatmulPrecision.FLOAT32) >= everything
    assert traces(lowered, functions, ops=(Op.BACKWARD,)) >= everything - {"backward_weight"}
    jax.config.update("jax_numpy_rank_promotion", "warn")
    try:
        with pytest.warns(UserWarning, match="rank promotion"):
            assert traces(lowered, functions) >= everything
    finally:
        jax.config.update("jax_numpy_rank_promotion", "allow")
    monkeypatch.setattr(lowered_cache, "_code", lambda: "another version of jaxpipe")
    assert traces(lowered, functions) >= everything


def test_a_damaged_file_is_lowered_again(lowered: LoweredCache):
    functions = stage_functions(0)
    traces(lowered, functions)
    for file in files(lowered):
        content = bytearray(file.read_bytes())
        content[-200] ^= 1
        file.write_bytes(content)
    assert "forward" in traces(lowered, functions)
    assert not traces(lowered, functions)


def test_what_the_cache_cannot_tell_apart_is_not_kept(lowered: LoweredCache):
    class Another(Gpt):
        """A model of the user, of whose code the cache knows nothing."""

    functions = stage_functions(0)
    model = Another(tiny_gpt(tied=True).config)
    theirs = replace(functions, stage=replace(functions.stage, model=model))
    for _ in range(2):
        assert "forward" in traces(lowered, theirs)
    assert not files(lowered)


def test_nothing_is_kept_without_a_compile_cache(tmp_path: Path):
    folder, products = variables_of_cache(tmp_path / "compiled"), by_xla("of the test")
    settings = LoweredFor(ops=(), precision=MatmulPrecision.TF32, products=products)
    off = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    moved = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "mine")}
    for variables in ({**folder, **off}, moved, {}):
        lowered = LoweredCache(environment={"XDG_CACHE_HOME": str(tmp_path), **variables})
        assert lowered.part(stage_functions(0), settings) is None


def test_a_rank_reads_the_cache_unless_code_of_the_user_may_change_what_is_traced(
    lowered: LoweredCache,
):
    functions, compiler = stage_functions(0), partial(stage_compiler, lowered.environment)
    for has_hooks, traced in ((True, True), (True, True), (False, True), (False, False)):
        with counted_traces() as names:
            compiler(has_hooks=has_hooks)(functions, ops=tuple(Op))
        assert bool(names) is traced


@pytest.mark.parametrize("name", OptimizerName)
@pytest.mark.parametrize("has_masters", [False, True])
def test_the_state_of_each_optimizer_has_a_form(name: OptimizerName, has_masters: bool):
    optimizer = OptimizerConfig(name=name, master_weights=has_masters)
    functions = replace(stage_functions(0), optimizer=optimizer)
    structure = jax.tree.structure(jax.eval_shape(functions.init))
    assert jax.tree.structure(tree_of(form_of(structure))) == structure


@pytest.mark.parametrize(
    "form", ["x", ["set", []], ["state", "Popen", []], ["dict", ["a"], []], ["dict", [1], [0]]]
)
def test_no_other_form_is_read(form: Any):
    with pytest.raises(UnknownNodeError, match="no form of a"):
        tree_of(form)


def test_a_tree_of_another_kind_has_no_form():
    for tree in ({1: 0.0}, jax.tree_util.Partial(Stage)):
        with pytest.raises(UnknownNodeError):
            form_of(jax.tree.structure(tree))


ONE_RANK = """
import os, sys
from jaxpipe.runtime.process.compile_cache import use_compile_cache
use_compile_cache(os.environ)
import jax
compiled = []
jax.monitoring.register_event_listener(
    lambda name, **_: compiled.append(name) if name == "/jax/compilation_cache/cache_misses" else 0
)
from jaxpipe.runtime.stage.compile import stage_compiler
from jaxpipe.schedule import Op
from tests.runtime.stage.one_step import stage_functions
print("ready", flush=True)
sys.stdin.readline()
stage_compiler(os.environ, has_hooks=False)(stage_functions(0), ops=tuple(Op))
print(len(compiled), int("flax" in sys.modules), flush=True)
"""


def test_of_equal_stages_of_a_host_that_start_together_one_is_compiled(tmp_path: Path):
    # The others do not even import flax, which makes modules of parameters.
    environment = {**os.environ, **variables_of_cache(tmp_path / "compiled")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    command = [sys.executable, "-c", ONE_RANK]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(subprocess.Popen(command, env=environment, **pipes))
            for _ in range(3)
        ]
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        outputs = [rank.communicate(timeout=120.0)[0] for rank in ranks]
    first, second, (num_compiled, has_flax) = sorted(
        tuple(map(int, output.split())) for output in outputs
    )
    assert first == second == (0, 0)
    assert num_compiled >= 9
    assert has_flax
    assert not [file for file in files_in(tmp_path) if file.suffix == ".lock"]
