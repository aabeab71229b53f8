"""Compiles each stage once in a process, whichever ranks ask for it.

The ranks of a run have a process each, and compile what they need. Where ranks are threads of one
process, replicas that are alike have equal stages.
"""

from collections.abc import Callable, Collection, Hashable
from threading import Lock

from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, num_executables
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.schedule import Op


class CompileOnce:
    """`compile_stage`, with its results kept; of ranks that start together the first compiles.

    Different stages compile at the same time.
    """

    def __init__(self) -> None:
        self._stages: dict[Hashable, CompiledStage] = {}
        self._locks: dict[Hashable, Lock] = {}
        self._changing = Lock()

    def __call__(
        self,
        functions: StageFunctions,
        *,
        ops: Collection[Op],
        precision: MatmulPrecision = MatmulPrecision.TF32,
        before_each: Callable[[], object] = list,
    ) -> CompiledStage:
        """Return what `compile_stage` returns."""
        for _ in range(num_executables(functions, ops=ops)):  # also where it is compiled already
            before_each()
        key = (functions, frozenset(ops), precision)
        with self._changing:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._stages:
                self._stages[key] = compile_stage(functions, ops=ops, precision=precision)
            return self._stages[key]

    def forget(self) -> None:
        """Compile each stage again when it is asked for next."""
        self._stages.clear()
