"""Compile functions of a stage side by side: threads compile while the first one traces the next.

XLA compiles outside of Python's lock. The stage of eight layers of 512 took 5.4 s one after the
other on two cores, and 4.6 s side by side; on one core 8.2 and 8.3 s (measured).
"""

import os
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jax.stages import Compiled

from jaxpipe.runtime.blas.chosen_products import Products
from jaxpipe.runtime.process.affinity import NUM_THREADS
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.lowered_cache import LoweredParts, never_traced
from jaxpipe.runtime.stage.mesh import StageLayout
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.split_backward import Carried, CarryForm

_Result = TypeVar("_Result")

_MOST_THREADS = 4
"""That compile: a stage has two or three functions that take long."""


def compile_threads(environment: Mapping[str, str]) -> Executor:
    """Return a thread for each core of this process, one where it shares cores with other ranks."""
    shares = NUM_THREADS in environment or not hasattr(os, "sched_getaffinity")
    num_threads = 1 if shares else min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return ThreadPoolExecutor(num_threads, "compile")


def compiler_options(dtype: np.dtype) -> dict[str, str | bool]:
    """Return the options of XLA for a stage that computes in a format, on the default backend.

    On CPUs XLA multiplies matrices of 16 bits as float32. Its default order of instructions, which
    lets several cores compute at once, begins with all conversions, so that all weights are there
    in float32 as well; the other order converts each before its product. Temporaries of the forward
    of 13 layers of GPT-3 XL in bfloat16: 0.07 in place of 2.62 GB; of the backward 0.42 in place of
    3.05 GB (XLA's analysis).
    """
    if jax.default_backend() != "cpu" or dtype.itemsize >= np.dtype(np.float32).itemsize:
        return {}
    return _known({"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"})


def _known(options: dict[str, str | bool]) -> dict[str, str | bool]:
    """Return the options, or none where this version of XLA refuses one."""
    try:
        jax.jit(lambda x: x).lower(np.float32(0)).compile(options)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


class Once(Protocol):
    """Makes what belongs to a key, or takes what was made for an equal one."""

    def __call__(self, key: Hashable, make: Callable[[], _Result], /) -> _Result:
        """Return what was made for the key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardHalves:
    """The halves of a backward to compile; those that are kept are not traced again."""

    carry_form: CarryForm
    input_half: Callable = never_traced
    weight_half: Callable = never_traced


def _named(name: str, function: Callable) -> Callable:
    """Return the function by another name, which XLA's program has in profiles."""

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = name
    return call


class Compiler:
    """Compiles functions for one layout in threads, while this thread traces the next.

    On a mesh each waits for the one before, whose shardings XLA chooses.
    """

    def __init__(
        self,
        layout: StageLayout,
        threads: Executor,
        once: Once,
        products: Products,
        options: dict[str, str | bool],
        parts: LoweredParts,
    ) -> None:
        self._layout, self._threads, self._options = layout, threads, options
        self._parts = parts
        self.once, self.products = once, products
        self.under_way: dict[str, Future[Compiled]] = {}
        self.unneeded: set[str] = set()

    def add(
        self,
        name: str,
        function: Callable,
        *arguments: Any,
        reads: StageFunctions,
        donate: tuple[int, ...] = (),
        out: Any = None,
    ) -> Any:
        """Begin to compile a function for these shapes, and return the shapes of its results.

        Results are sharded as `out` says; where that is None, XLA chooses. A function of the same
        name that `reads` the same is compiled once.
        """

        def make() -> tuple[Future[Compiled], Any]:
            part = self._parts.part(reads)
            computes = function if part is None else part.function(name, function, arguments)
            # Donation is decided at compilation: XLA writes results over the donated arguments.
            jitted = jax.jit(_named(name, computes), donate_argnums=donate, out_shardings=out)
            lowered = jitted.lower(*arguments)
            compilation = self._threads.submit(partial(lowered.compile, self._options))
            shardings = None
            if self._layout.mesh is not None:
                shardings = compilation.result().output_shardings
            return compilation, self._layout.shapes(lowered.out_info, shardings)

        self.under_way[name], shapes = self.once((name, reads), make)
        return shapes

    def halves(self, functions: StageFunctions, given: tuple[Any, Any, Any]) -> BackwardHalves:
        """Return the halves of a backward, `given` the shapes of compute, residuals, cotangent."""
        part = self._parts.part(functions)
        if part is not None and part.stored is not None:
            assert part.stored.carry_form is not None, "kept for a schedule that splits no backward"
            return BackwardHalves(carry_form=part.stored.carry_form)
        split = functions.split_backward(*given)
        if part is not None:
            part.carry_form = split.carry_form

        def weight_half(compute: Parameters, carried: Carried, gradients: Parameters) -> Parameters:
            return functions.backward_weight(compute, replace(carried, split=split), gradients)

        return BackwardHalves(
            carry_form=split.carry_form,
            input_half=partial(functions.input_half, split),
            weight_half=weight_half,
        )

    def executables(self, before_each: Callable[[], object]) -> dict[str, Compiled]:
        """Wait for all executables, and return those needed; the callback is before each wait."""
        executables: dict[str, Compiled] = {}
        for name, compilation in self.under_way.items():
            before_each()
            executable = compilation.result()
            if name not in self.unneeded:
                executables[name] = executable
        return executables
