"""Compiles each stage once in a process, whichever ranks and runs ask for it."""

from collections.abc import Callable, Collection
from functools import cache
from threading import Lock

from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, num_executables
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.schedule import Op

_ONE_AT_A_TIME = Lock()


def compile_stage_once(
    functions: StageFunctions,
    *,
    ops: Collection[Op],
    precision: MatmulPrecision = MatmulPrecision.TF32,
    before_each: Callable[[], object] = list,
) -> CompiledStage:
    """Return what `compile_stage` returns; of replicas that start together the first compiles."""
    for _ in range(num_executables(functions, ops=ops)):  # also of a stage that is compiled already
        before_each()
    with _ONE_AT_A_TIME:
        return _compiled(functions, frozenset(ops), precision)


def forget() -> None:
    """Compile each stage again when it is asked for next."""
    _compiled.cache_clear()


@cache
def _compiled(
    functions: StageFunctions, ops: frozenset[Op], precision: MatmulPrecision
) -> CompiledStage:
    return compile_stage(functions, ops=ops, precision=precision)
