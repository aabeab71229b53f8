"""Read adapters in the files of PEFT, for the model in another folder.

::

    base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight (rank, in)
        ──►  blocks.3.attention.query.kernel_lora_a (in, rank)
    base_model.model.lm_head.weight, or another tensor of the model itself
        ──►  counts in place of that of the model

All adapters of jaxpipe have one rank and one factor: adapters of a lower rank, and layers without
one, are filled up with zeros in A and in B, whose gradients are zero, too; another factor is
multiplied into B. Where several of our products are one module of PEFT, each has a copy of A. Of
experts, each is a module of PEFT, as in `transformers` 4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.finetune.adapter_names import can_adapt, factor_shapes, module_of
from jaxpipe.interchange.checked_tensor import check_shape, finite
from jaxpipe.interchange.llama_tensors import ROUTER
from jaxpipe.interchange.model_folder import FamilyFiles, exchange_of, read_model
from jaxpipe.interchange.peft_fields import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    PREFIX,
    WEIGHT,
    AdapterFields,
    adapter_fields_of,
)
from jaxpipe.interchange.peft_targets import Adapted, adapted_modules, is_saved
from jaxpipe.interchange.tensor_files import CONFIG, TensorFiles, open_file, read_json
from jaxpipe.models import ModelConfig
from jaxpipe.runtime.checkpoint import StreamedTensor

_BASE: Final = "base_layer."
_A: Final = ".lora_A.weight"
_B: Final = ".lora_B.weight"
_HEAD: Final = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFiles:
    """A model in files, perhaps with adapters.

    Args:
        model: the configuration of the model.
        tensors: those of the model and of the adapters.
        lora: the configuration of the adapters.
        replaced: the names, in `transformers`, of those of the model that are in the files of the
            adapters.
        dropout: what PEFT drops of the inputs of adapters in training.
    """

    model: ModelConfig
    tensors: Iterator[StreamedTensor]
    lora: LoraConfig = field(default_factory=LoraConfig)
    replaced: tuple[str, ...] = ()
    dropout: float = 0.0


def read_adapters(folder: Path, base: Path, *, ignored: tuple[str, ...] = ()) -> TunedFiles:
    """Return the model in `base` with the adapters in a folder.

    Names and fields are checked at once, each tensor as its pieces are taken. Fields of
    `adapter_config.json` and of the model's `config.json` that are `ignored` need not be known.

    Raises:
        ConfigError: a file of fields is missing, or says what jaxpipe does not compute.
        CheckpointError: a file of tensors is missing or corrupt, or does not fit the others.
    """
    stated = read_json(folder / ADAPTER_CONFIG, ConfigError)
    fields = adapter_fields_of(stated, [name for name in ignored if name in stated])
    rest = [name for name in ignored if name not in stated]
    model, _ = read_model(base, ignored=rest)
    kind = read_json(base / CONFIG, ConfigError).get("model_type")
    exchange = exchange_of(model, kind)
    files = open_file(folder / ADAPTER_WEIGHTS)
    kernels = dict(_kernels(exchange))
    others = [name.rpartition(".")[0] for name in exchange.theirs]
    adapted = adapted_modules(fields, kernels, [*others, _HEAD])
    replaced = _replaced(files, exchange, adapted)
    _check_saved(fields, exchange, adapted, replaced, is_tied=model.tied)
    lora = _lora(adapted, kernels, exchange, fields)
    model, tensors = read_model(base, ignored=rest, replaced=replaced)

    def all_tensors() -> Iterator[StreamedTensor]:
        yield from tensors
        yield from _adapters(files, exchange, adapted, lora)

    return TunedFiles(
        model=model,
        lora=lora,
        tensors=all_tensors(),
        replaced=tuple(replaced.files),
        dropout=fields.dropout,
    )


def _kernels(exchange: FamilyFiles) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the modules that can have adapters, each with our kernels that it is."""
    for theirs, ours in exchange.theirs.items():
        # A router is a module with a product in `transformers` 4, and none in 5.
        is_layer = all(n.startswith("blocks.") and not n.endswith(ROUTER) for n in ours)
        if is_layer and all(can_adapt(len(exchange.shapes(name))) for name in ours):
            yield theirs.removesuffix(WEIGHT), ours


def _replaced(
    files: TensorFiles, exchange: FamilyFiles, adapted: Mapping[str, Adapted]
) -> TensorFiles:
    """Return the tensors of the model itself that are in the files.

    Raises:
        CheckpointError: the files lack an adapter, or have a tensor that PEFT does not read.
    """
    needed = {f"{PREFIX}{module}{leaf}" for module in adapted for leaf in (_A, _B)}
    if missing := sorted(needed - files.files.keys()):
        raise CheckpointError(
            f"`target_modules` and others in `{ADAPTER_CONFIG}` need {len(needed)} tensors of "
            f"adapters, and the files lack {', '.join(missing[:4])}; give the files that belong "
            "together"
        )
    stored: dict[str, str] = {}
    for key in sorted(files.files.keys() - needed):
        name = _name_in_model(key, adapted)
        if name is None or not (name in exchange.theirs or name == f"{_HEAD}{WEIGHT}"):
            raise CheckpointError(
                f"`{key:.120}` must be an adapter that `{ADAPTER_CONFIG}` describes, or a tensor "
                "of the model; give the files that belong together"
            )
        stored[name] = key
    return TensorFiles({name: files.files[key] for name, key in stored.items()}, stored)


def _name_in_model(key: str, adapted: Mapping[str, Adapted]) -> str | None:
    """Return the name in the model of a tensor beside adapters; None if PEFT reads none such."""
    if not key.startswith(PREFIX):
        return None
    module, _, leaf = key.removeprefix(PREFIX).rpartition(".")
    is_inside = f"{module}.".endswith(f".{_BASE}")
    module = module.removesuffix(f".{_BASE[:-1]}") if is_inside else module
    return f"{module}.{leaf}" if is_inside == (module in adapted) else None


def _check_saved(
    fields: AdapterFields,
    exchange: FamilyFiles,
    adapted: Mapping[str, Adapted],
    replaced: TensorFiles,
    *,
    is_tied: bool,
) -> None:
    """Check the modules that the files have as a whole.

    Raises:
        ConfigError: one of them has adapters, too, or is a table that two modules share.
        CheckpointError: the files lack a tensor of one.
    """
    for module in adapted:
        if is_saved(module, fields):
            raise ConfigError(
                f"`modules_to_save` in `{ADAPTER_CONFIG}` must have no module with adapters, and "
                f"{module} has one; leave it out of `target_modules`"
            )
    names = [name for name in exchange.theirs if is_saved(name.rpartition(".")[0], fields)]
    tables = [name for name in names if exchange.theirs[name] == ("embed.tokens",)]
    if is_tied and (tables or is_saved(_HEAD, fields)):
        raise ConfigError(
            f"`modules_to_save` in `{ADAPTER_CONFIG}` has {tables[0] if tables else _HEAD}, and "
            "`tie_word_embeddings` in the model's `config.json` is true: PEFT trains one of the "
            "two tables apart; merge the adapters with PEFT's `merge_and_unload`"
        )
    if missing := [name for name in names if name not in replaced.files]:
        raise CheckpointError(
            f"`modules_to_save` in `{ADAPTER_CONFIG}` needs {', '.join(missing[:4])} in the files, "
            "which lack it; give the files that belong together"
        )


def _lora(
    adapted: Mapping[str, Adapted],
    kernels: Mapping[str, tuple[str, ...]],
    exchange: FamilyFiles,
    fields: AdapterFields,
) -> LoraConfig:
    """Return the adapters that hold all of these.

    Raises:
        ConfigError: the largest rank is above a side of a product.
    """
    rank = max(adapter.rank for adapter in adapted.values())
    targets: dict[str, None] = {}
    for module in adapted:
        for name in kernels[module]:
            inputs, *outputs = exchange.kernel_shape(module + WEIGHT, name)
            if rank > (most := min(inputs, prod(outputs))):
                limit = "r" if rank == fields.rank else "rank_pattern"
                raise ConfigError(
                    f"`{limit}` in `{ADAPTER_CONFIG}` must be at most {most}, the smaller "
                    f"side of {module}, and all products have one rank here, {rank}; merge "
                    "the adapters with PEFT's `merge_and_unload`"
                )
            targets[_in_layer(module_of(name))] = None
    scale = max(adapter.scale for adapter in adapted.values())
    return LoraConfig(rank=rank, alpha=scale * rank, targets=tuple(sorted(targets)))


def _in_layer(name: str) -> str:
    """Return a name without the number of its layer."""
    return name.removeprefix("blocks.").partition(".")[2]


def _adapters(
    files: TensorFiles, exchange: FamilyFiles, adapted: Mapping[str, Adapted], lora: LoraConfig
) -> Iterator[StreamedTensor]:
    """Yield A and B of all kernels with adapters, in all layers."""
    parts: dict[str, list[_Part]] = {}  # of experts one for each, which follow each other
    for module, ours in _kernels(exchange):
        shapes = [exchange.kernel_shape(module + WEIGHT, name) for name in ours]
        num_outputs, first = sum(prod(shape[1:]) for shape in shapes), 0
        for name, shape in zip(ours, shapes, strict=True):
            rows = range(first, first + prod(shape[1:]))
            first = rows.stop
            if _in_layer(module_of(name)) in lora.targets:
                part = _Part(files, module, adapted.get(module), lora, rows, num_outputs, shape)
                parts.setdefault(name, []).append(part)
    for name, of_kernel in parts.items():
        a, b = factor_shapes(name, exchange.shapes(name), lora.rank)
        yield StreamedTensor(name + LORA_A, a, partial(_pieces, [part.a for part in of_kernel]))
        yield StreamedTensor(name + LORA_B, b, partial(_pieces, [part.b for part in of_kernel]))


def _pieces(read: Sequence[Callable[[], np.ndarray]]) -> Iterator[np.ndarray]:
    for piece in read:
        yield piece()


@dataclass(frozen=True, slots=True)
class _Part:
    """The adapter of one kernel: all of A, and some rows of B, of a module of PEFT.

    Without an adapter there, both are zero. The `shape` is that of the kernel.
    """

    files: TensorFiles
    module: str
    adapter: Adapted | None
    lora: LoraConfig
    rows: range
    num_outputs: int
    shape: tuple[int, ...]

    def a(self) -> np.ndarray:
        """Return A.

        Raises:
            CheckpointError: it is of another shape, or not finite.
        """
        num_inputs = self.shape[0]
        padded = np.zeros((num_inputs, self.lora.rank), np.float32)
        if self.adapter is not None:
            name = f"{PREFIX}{self.module}{_A}"
            check_shape(self.files.shape(name), (self.adapter.rank, num_inputs), name=name)
            padded[:, : self.adapter.rank] = finite(self.files.read(name), name=name).T
        return padded

    def b(self) -> np.ndarray:
        """Return B, with what differs from the common factor.

        Raises:
            CheckpointError: it is of another shape, or not finite.
        """
        padded = np.zeros((self.lora.rank, len(self.rows)), np.float32)
        if self.adapter is not None:
            name = f"{PREFIX}{self.module}{_B}"
            check_shape(self.files.shape(name), (self.num_outputs, self.adapter.rank), name=name)
            factor = np.float32(self.adapter.scale / self.lora.scale)
            part = finite(self.files.part(name, self.rows), name=name)
            padded[: self.adapter.rank] = factor * part.T
        return padded.reshape(self.lora.rank, *self.shape[1:])
