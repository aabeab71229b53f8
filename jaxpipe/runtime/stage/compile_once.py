"""Compiles each function of a stage once in a process, whichever ranks ask for it.

The ranks of a run have a process each, and compile what they need. Where ranks are threads of one
process, replicas that are alike have equal stages; and other runs of the process have stages that
differ in their batch, their optimizer or their schedule alone.
"""

from collections.abc import Callable, Collection, Hashable
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, num_executables
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.schedule import Op

_Result = TypeVar("_Result")


class CompileOnce:
    """`compile_stage`, with its executables kept; of ranks that start together the first compiles.

    Different functions compile at the same time.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}
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
        once = partial(self._once, precision)
        return once(
            (functions, frozenset(ops)),
            lambda: compile_stage(functions, ops=ops, precision=precision, once=once),
        )

    def _once(
        self, precision: MatmulPrecision, key: Hashable, make: Callable[[], _Result]
    ) -> _Result:
        key = (precision, key)
        with self._changing:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._kept:
                self._kept[key] = make()
            return self._kept[key]

    def forget(self) -> None:
        """Compile each function again when it is asked for next."""
        self._kept.clear()
