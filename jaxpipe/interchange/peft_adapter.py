"""Write adapters in the files of PEFT, for Hugging Face's `PeftModel.from_pretrained`.

::

    blocks.3.attention.query.kernel_lora_a (in, rank)
    ──►  base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight (rank, in)

Source: the page "PEFT checkpoint format" of PEFT's documentation.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.interchange.checked_tensor import in_format
from jaxpipe.interchange.llama_tensors import ROUTER
from jaxpipe.interchange.model_folder import PLAIN_FORM, ExportForm, FamilyFiles, exchange_of
from jaxpipe.interchange.peft_fields import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PREFIX, WEIGHT
from jaxpipe.models import ModelConfig
from jaxpipe.runtime.checkpoint import Read
from jaxpipe.runtime.storage.atomic_write import mode_by_umask


def write_adapter(
    folder: Path,
    config: ModelConfig,
    lora: LoraConfig,
    read: Read,
    present: Iterable[str],
    *,
    form: ExportForm = PLAIN_FORM,
    base: str | None = None,
) -> None:
    """Write the adapters among the tensors that are `present`, for the model `base`.

    Raises:
        ConfigError: the model is none that `transformers` has, or some layers lack an adapter that
            others have.
        CheckpointError: the folder cannot be written, or a tensor is missing.
    """
    exchange = exchange_of(config, form.kind)
    names, adapted = frozenset(present), dict[str, tuple[str, ...]]()
    for their_name, ours in exchange.theirs.items():
        if any(name + LORA_A in names for name in ours):
            adapted[their_name.removesuffix(WEIGHT)] = ours
    ends = _check_layers(adapted, exchange, lora)
    wanted = [name + s for ours in adapted.values() for name in ours for s in (LORA_A, LORA_B)]
    tensors = read([name for name in wanted if name in names])
    theirs: dict[str, np.ndarray] = {}
    for module, ours in adapted.items():
        a, b = _side_by_side(tensors, ours, exchange, lora)
        for leaf, tensor in (("lora_A", a), ("lora_B", b)):
            name = f"{PREFIX}{module}.{leaf}.weight"
            theirs[name] = in_format(tensor, form.dtype, name)
    fields = _fields(exchange, lora, ends, base=base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mode_by_umask(folder / ADAPTER_WEIGHTS):
            save_file(theirs, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        text = msgspec.json.format(msgspec.json.encode(fields), indent=2)
        (folder / ADAPTER_CONFIG).write_bytes(text + b"\n")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error}; name another folder for the export"
        ) from error


def _side_by_side(
    tensors: Mapping[str, np.ndarray], ours: Sequence[str], exchange: FamilyFiles, lora: LoraConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return A (rank, in) and B (out, rank) of one of PEFT's modules.

    Where it is several products, each has its own columns of B and rows of A: the rank is theirs
    together, and B is zero where a product does not read the rows of another.
    """
    rank, (num_inputs, *_) = lora.rank, exchange.shapes(ours[0])
    num_outputs = [prod(exchange.shapes(name)[1:]) for name in ours]
    a = np.zeros((rank * len(ours), num_inputs), np.float32)
    b = np.zeros((sum(num_outputs), rank * len(ours)), np.float32)
    first = 0
    for number, (name, outputs) in enumerate(zip(ours, num_outputs, strict=True)):
        if name + LORA_A in tensors:
            rows = slice(number * rank, (number + 1) * rank)
            a[rows] = np.asarray(tensors[name + LORA_A], np.float32).T
            # Of a GPT-2, queries, keys and values are side by side.
            b[first : first + outputs, rows] = (
                np.asarray(tensors[name + LORA_B], np.float32).reshape(rank, outputs).T
            )
        first += outputs
    return a, b


def _check_layers(
    adapted: Mapping[str, tuple[str, ...]], exchange: FamilyFiles, lora: LoraConfig
) -> dict[str, int]:
    """Return the ends of the names of modules, and how many products each is.

    Raises:
        ConfigError: PEFT expects those of all layers, and some are missing; or a router has one.
    """
    if any(name.endswith(ROUTER) for ours in adapted.values() for name in ours):
        raise ConfigError(
            f"`lora.targets` ({', '.join(lora.targets)}) matches {ROUTER}, which is no module with "
            "adapters in `transformers` 5; export the merged model instead, without `--adapter`"
        )
    ends = [_end(module) for module in adapted]
    all_ends = [_end(theirs.removesuffix(WEIGHT)) for theirs in exchange.theirs]
    for end in ends:
        depth = all_ends.count(end)
        if ends.count(end) != depth:
            raise ConfigError(
                f"`lora.targets` ({', '.join(lora.targets)}) must match all layers or none for "
                f"PEFT, and {end} has an adapter in {ends.count(end)} of {depth}; export the "
                "merged model instead, without `--adapter`"
            )
    return {_end(module): len(ours) for module, ours in sorted(adapted.items())}


def _end(module: str) -> str:
    """Return the name of a module within its layer."""
    return ".".join(module.split(".")[-2:])


def _fields(
    exchange: FamilyFiles, lora: LoraConfig, ends: Mapping[str, int], *, base: str | None
) -> dict[str, Any]:
    several = {end: number for end, number in ends.items() if number > 1}
    return {
        # Alpha over rank is the same for all.
        "alpha_pattern": {end: number * lora.alpha for end, number in several.items()},
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": exchange.is_inputs_first,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "rank_pattern": {end: number * lora.rank for end, number in several.items()},
        "target_modules": sorted(ends),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
