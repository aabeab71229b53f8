"""Functions of stages as jax has lowered them, kept between runs: the next start traces none.

::

    function ─► trace ─► lower ─► StableHLO ─┬─► XLA, whose executables `compile_cache` keeps
                                             ▼
    ~/.cache/jaxpipe/compiled/lowered/       a file per part of a stage

jax finds an executable by a hash of its StableHLO: with the compile cache alone, a start that
compiles nothing still traces and lowers all functions. A part are the functions of a stage that
read the same of its configuration. It is kept as a whole, since a backward is traced from what its
forward returns. All that it depends on is its key: the stage, the code of jaxpipe, versions, and
the settings of jax.
"""

import dataclasses
import hashlib
import logging
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import export

from jaxpipe.installed import version_of
from jaxpipe.runtime.blas.chosen_products import Products
from jaxpipe.runtime.blas.product_lowering import call_names
from jaxpipe.runtime.process.compile_cache import is_in_use, publish
from jaxpipe.runtime.process.file_lock import in_turn
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.functions import StageFunctions
from jaxpipe.runtime.stage.split_backward import CarryForm
from jaxpipe.runtime.stage.tree_form import TreeForm, form_of, tree_of
from jaxpipe.runtime.storage.kept_file import KeptFile
from jaxpipe.schedule import Op

logger = logging.getLogger(__name__)

_FORMAT = 1
_MOST_WAIT_S = 300.0
"""That a process waits for another one which compiles the same; then it compiles as well."""
_PACKAGE = Path(__file__).parents[2]
_PACKAGES = ("jaxpipe", "jax", "jaxlib", "flax", "optax", "numpy")
_PLACES = ("jax_compilation_cache_dir", "jax_persistent_cache", "jax_enable_compilation_cache")
"""Settings of jax that say where something is kept, which no function depends on."""


def never_traced(*_: Any) -> Any:
    """Stand in for a function that is not traced, since it is kept."""
    raise AssertionError("a kept function is traced")


class UnknownValueError(ValueError):
    """A part of a configuration of which the cache cannot tell what a function reads."""


class _Lowered(msgspec.Struct, kw_only=True):
    """A function as StableHLO, and the structure of its results."""

    module: bytes
    results: TreeForm


class _Part(msgspec.Struct, kw_only=True):
    """The functions of a part by name; `carry_form` is that of a split backward, if it has one."""

    functions: dict[str, _Lowered]
    carry_form: CarryForm | None = None


@dataclass(slots=True, kw_only=True)
class LoweredPart:
    """A part of a stage: what is `stored` of it, or else what is lowered now."""

    file: KeptFile
    stored: _Part | None
    calls: tuple[str, ...] = ()
    lowered: dict[str, _Lowered] = field(default_factory=dict)
    carry_form: CarryForm | None = None
    is_complete: bool = True

    def function(self, name: str, function: Callable, arguments: tuple[Any, ...]) -> Callable:
        """Return a function that computes the same, and is neither traced nor lowered if kept."""
        if self.stored is not None:
            lowered = self.stored.functions[name]
            exported = export.deserialize(bytearray(lowered.module))
            return _called(exported, jax.tree.structure(tree_of(lowered.results)))
        try:
            exported, results = _exported(function, arguments, calls=self.calls)
            form = form_of(results)
            self.lowered[name] = _Lowered(module=bytes(exported.serialize()), results=form)
        except (ValueError, NotImplementedError) as error:  # of another custom call, for one
            logger.info("%s is not kept: %s", name, error)
            self.is_complete = False
            return function
        return _called(exported, results)

    def keep(self) -> None:
        """Keep what was lowered, if all of it can be."""
        if self.stored is None and self.is_complete:
            self.file.write(_Part(functions=self.lowered, carry_form=self.carry_form))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredCache:
    """The cache of a user, for stages of one device."""

    environment: Mapping[str, str]

    def part(self, functions: StageFunctions, settings: "LoweredFor") -> LoweredPart | None:
        """Return a part of a stage by what it reads; None where it cannot be kept."""
        if not is_in_use(self.environment) or functions.stage.layout.mesh is not None:
            return None
        if jax.default_backend() != "cpu":  # calls of other libraries may be no part of a module
            return None
        calls = call_names(settings.products)  # which change with what they compute
        try:
            stage = _plain(functions)
        except UnknownValueError as error:
            logger.info("functions of a stage are not kept: %s", error)
            return None
        key = {
            "format": _FORMAT,
            "versions": {name: version_of(name) for name in _PACKAGES},
            "python": platform.python_version(),
            "code": _code(),
            "jax": _settings_of_jax(),
            "ops": sorted(op.value for op in settings.ops),
            "stage": stage,
            "precision": settings.precision.jax_name,
            "calls": calls,
        }
        file = KeptFile(
            kind="stage",
            key=key,
            environment=self.environment,
            folder="compiled/lowered",
            suffix="-cache",
        )
        return LoweredPart(file=file, stored=file.read(_Part), calls=calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredFor:
    """What the functions of a stage are lowered for: all that `ops` need, with these products."""

    ops: Collection[Op]
    precision: MatmulPrecision
    products: Products


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredParts:
    """The parts of a stage that are asked for; of none where there is no `cache`."""

    cache: LoweredCache | None
    settings: LoweredFor
    known: dict[StageFunctions, LoweredPart | None] = field(default_factory=dict)

    def part(self, functions: StageFunctions) -> LoweredPart | None:
        """Return a part by what it reads; None where it is not kept."""
        if self.cache is not None and functions not in self.known:
            self.known[functions] = self.cache.part(functions, self.settings)
        return self.known.get(functions)

    def keep(self) -> None:
        """Keep what was lowered, for the next start."""
        for part in self.known.values():
            if part is not None:
                part.keep()


@contextmanager
def opened_parts(
    cache: LoweredCache | None, functions: StageFunctions, settings: LoweredFor
) -> Iterator[LoweredParts]:
    """Open the parts of a stage, and keep at the end what was lowered and compiled meanwhile.

    Of equal stages that processes of a host compile first, all but one wait, and read it.
    """
    parts = LoweredParts(cache=cache, settings=settings)
    last = parts.part(functions)
    if cache is None or last is None:
        yield parts
        return
    turn: AbstractContextManager[object] = nullcontext()
    if last.stored is None:
        parts.known.clear()  # what the process before this one keeps is to be read
        turn = in_turn(last.file.path.with_suffix(".lock"), wait_s=_MOST_WAIT_S)
    with turn:
        publish(cache.environment)
        yield parts
        publish(cache.environment)  # before the parts, by which others know what is compiled
        parts.keep()


def _exported(
    function: Callable, arguments: tuple[Any, ...], *, calls: tuple[str, ...]
) -> tuple[export.Exported, Any]:
    """Return a function of leaves that is lowered for the shapes of arguments, and its results."""
    leaves, structure = jax.tree.flatten(arguments)
    of_results = []

    def flat(*leaves: Any) -> list[Any]:
        results, result_structure = jax.tree.flatten(
            function(*jax.tree.unflatten(structure, leaves))
        )
        of_results.append(result_structure)
        return results

    unchecked = tuple(export.DisabledSafetyCheck.custom_call(name) for name in calls)
    exported = export.export(jax.jit(flat), disabled_checks=unchecked)(*leaves)
    return exported, of_results[-1]


def _called(exported: export.Exported, results: Any) -> Callable:
    """Return the function of trees that calls an exported one of leaves."""
    read = frozenset(exported.module_kept_var_idx)
    if b"lapack_" not in exported.mlir_module_serialized:
        # Before it calls what was lowered for "cpu", jax loads LAPACK: it imports SciPy for 0.2 s.
        unchecked = (*exported.disabled_safety_checks, export.DisabledSafetyCheck.platform())
        exported = dataclasses.replace(
            exported, platforms=("any",), disabled_safety_checks=unchecked
        )

    def function(*arguments: Any) -> Any:
        # An argument that is not read would be moved to the device at each call.
        leaves = [
            leaf if number in read else jnp.zeros(leaf.shape, leaf.dtype)
            for number, leaf in enumerate(jax.tree.leaves(arguments))
        ]
        return jax.tree.unflatten(results, exported.call(*leaves))

    return function


def _plain(value: Any) -> Any:
    """Return a part of a configuration as plain data, which is equal where functions are.

    Raises:
        UnknownValueError: it is neither plain nor jaxpipe's own.
    """
    match value:
        case Enum():
            plain: Any = [type(value).__qualname__, value.name]
        case None | bool() | int() | str():
            plain = value
        case float():
            plain = value.hex()
        case tuple() | list():
            plain = [_plain(member) for member in value]
        case range():
            plain = ["range", value.start, value.stop, value.step]
        case Mapping():
            plain = [[_plain(key), _plain(part)] for key, part in value.items()]
        case np.dtype():
            plain = str(value)
        case _:
            plain = _plain_fields(value)
    return plain


def _plain_fields(value: Any) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not (dataclasses.is_dataclass(kind) and name.startswith("jaxpipe.")):
        raise UnknownValueError(f"a {name}")
    # What is no argument follows from the arguments.
    fields = [part.name for part in dataclasses.fields(kind) if part.init]
    return [name, {field: _plain(getattr(value, field)) for field in fields}]


@cache
def _code() -> str:
    """Return a digest of jaxpipe's own code: names, sizes and times of change of its files."""
    lines = []
    for folder, folders, files in os.walk(_PACKAGE, followlinks=True):
        folders.sort()
        for name in sorted(files):
            if name.endswith((".py", ".c", ".h")):
                status = os.stat(f"{folder}/{name}")
                lines.append(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _settings_of_jax() -> dict[str, str]:
    """Return the settings of jax, of which many change what it traces."""
    settings = jax.config.values.items()
    return {name: repr(value) for name, value in settings if not name.startswith(_PLACES)}
