"""Compiles each stage once in a process, whichever ranks and runs ask for it."""

from collections.abc import Callable, Collection
from functools import cache
from threading import Lock

from jax.sharding import Mesh

from jaxpipe.runtime.config import MatmulPrecision
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, num_executables
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.mesh import ONE_DEVICE, Layout
from jaxpipe.schedule import Op

_ONE_AT_A_TIME = Lock()


def compile_stage_once(
    functions: StageFunctions,
    *,
    ops: Collection[Op],
    layout: Layout = ONE_DEVICE,
    precision: MatmulPrecision = MatmulPrecision.TF32,
    before_each: Callable[[], object] = list,
) -> CompiledStage:
    """Return what `compile_stage` returns; of replicas that start together the first compiles."""
    for _ in range(num_executables(functions, ops=ops)):  # also of a stage that is compiled already
        before_each()
    with _ONE_AT_A_TIME:
        return _compiled(
            functions, frozenset(ops), layout.mesh, precision, shards_data=layout.shards_data
        )


def forget() -> None:
    """Compile each stage again when it is asked for next."""
    _compiled.cache_clear()


@cache
def _compiled(
    functions: StageFunctions,
    ops: frozenset[Op],
    mesh: Mesh | None,
    precision: MatmulPrecision,
    *,
    shards_data: bool,
) -> CompiledStage:
    split = functions.stage.model.split
    layout = ONE_DEVICE
    if mesh is not None:  # a layout has a dictionary, which no cache takes as a key
        layout = Layout(mesh=mesh, split=split, shards_data=shards_data)
    return compile_stage(functions, ops=ops, layout=layout, precision=precision)
