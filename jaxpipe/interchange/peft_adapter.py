"""Write adapters in the files of PEFT, for Hugging Face's `PeftModel.from_pretrained`.

::

    blocks.3.attention.query.kernel_lora_a (in, rank)
    ──►  base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight (rank, in)
    number 5 of blocks.3.moe.up_lora_a (experts, in, rank)
    ──►  base_model.model.model.layers.3.mlp.experts.5.up_proj.lora_A.weight (rank, in)

Experts are modules of `transformers` 4. Version 5 has the kernels of all in one tensor, into which
PEFT 0.21 converts their adapters; gate and up are one there: both have an adapter, or none has.

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
        if any(n + LORA_A in names for name in ours for n in (name, _beside(name))):
            adapted[their_name.removesuffix(WEIGHT)] = ours
    ends = _check_layers(adapted, exchange, lora)
    wanted = [name + s for ours in adapted.values() for name in ours for s in (LORA_A, LORA_B)]
    tensors = read([name for name in wanted if name in names])
    theirs: dict[str, np.ndarray] = {}
    for module, ours in adapted.items():
        a, b = _side_by_side(tensors, (module + WEIGHT, ours), exchange, lora)
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


def _beside(name: str) -> str:
    """Return the product that is one with this in experts of `transformers` 5, or itself."""
    for one, other in (("moe.gate", "moe.up"), ("moe.up", "moe.gate")):
        if name.endswith(one):
            return name.removesuffix(one) + other
    return name


def _side_by_side(
    tensors: Mapping[str, np.ndarray],
    names: tuple[str, Sequence[str]],
    exchange: FamilyFiles,
    lora: LoraConfig,
) -> tuple[np.ndarray, np.ndarray]:
    """Return A (rank, in) and B (out, rank) of one of PEFT's modules, by their name and ours.

    Where it is several products, each has its own columns of B and rows of A: the rank is theirs
    together, and B is zero where a product does not read the rows of another.
    """
    (theirs, ours), rank = names, lora.rank
    shapes = [exchange.kernel_shape(theirs, name) for name in ours]
    num_inputs, num_outputs = shapes[0][0], [prod(shape[1:]) for shape in shapes]
    a = np.zeros((rank * len(ours), num_inputs), np.float32)
    b = np.zeros((sum(num_outputs), rank * len(ours)), np.float32)
    first = 0
    for number, (name, outputs) in enumerate(zip(ours, num_outputs, strict=True)):
        if name + LORA_A in tensors:
            rows, expert = slice(number * rank, (number + 1) * rank), exchange.experts.get(theirs)
            of_a, of_b = (tensors[name + suffix] for suffix in (LORA_A, LORA_B))
            of_a, of_b = (of_a, of_b) if expert is None else (of_a[expert], of_b[expert])
            a[rows] = np.asarray(of_a, np.float32).T
            # Of a GPT-2, queries, keys and values are side by side.
            b[first : first + outputs, rows] = np.asarray(of_b, np.float32).reshape(rank, outputs).T
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
    ends = [_end(module, exchange) for module in adapted]
    all_ends = [_end(theirs.removesuffix(WEIGHT), exchange) for theirs in exchange.theirs]
    for end in ends:
        depth = all_ends.count(end)
        if ends.count(end) != depth:
            raise ConfigError(
                f"`lora.targets` ({', '.join(lora.targets)}) must match all layers or none for "
                f"PEFT, and {end} has an adapter in {ends.count(end)} of {depth}; export the "
                "merged model instead, without `--adapter`"
            )
    return {_end(module, exchange): len(ours) for module, ours in sorted(adapted.items())}


def _end(module: str, exchange: FamilyFiles) -> str:
    """Return the name of a module within its layer; that of all experts is the same."""
    return ".".join(module.split(".")[-1 if module + WEIGHT in exchange.experts else -2 :])


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
