"""Write adapters in the files of PEFT, for Hugging Face's `PeftModel.from_pretrained`.

::

    blocks.3.attention.query.kernel_lora_a (in, rank)
    ──►  base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight (rank, in)

Source: the page "PEFT checkpoint format" of PEFT's documentation.
"""

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.interchange.model_folder import exchange_of
from jaxpipe.models import ModelConfig
from jaxpipe.runtime.checkpoint import Read
from jaxpipe.runtime.storage.atomic_write import mode_by_umask

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_CONFIG: Final = "adapter_config.json"

_PREFIX: Final = "base_model.model."
_WEIGHT: Final = ".weight"


def write_adapter(
    folder: Path, config: ModelConfig, lora: LoraConfig, read: Read, present: Iterable[str]
) -> None:
    """Write the adapters among the tensors that are `present`, in float32.

    Raises:
        ConfigError: the model is none that `transformers` has, or some layers lack an adapter that
            others have.
        CheckpointError: the folder cannot be written, or a tensor is missing.
    """
    names = dict(_adapted(config, frozenset(present)))
    tensors = read([name + suffix for name in names for suffix in (LORA_A, LORA_B)])
    theirs: dict[str, np.ndarray] = {}
    for name, module in names.items():
        a, b = (np.asarray(tensors[name + suffix], np.float32) for suffix in (LORA_A, LORA_B))
        theirs[f"{_PREFIX}{module}.lora_A.weight"] = np.ascontiguousarray(a.T)
        flat = b.reshape(len(b), prod(b.shape[1:]))  # queries, keys and values side by side
        theirs[f"{_PREFIX}{module}.lora_B.weight"] = np.ascontiguousarray(flat.T)
    fields = _fields(config, lora, targets=_targets(config, lora, names.values()))
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


def _adapted(config: ModelConfig, present: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield each kernel with an adapter, and the module that it is in `transformers`."""
    exchange = exchange_of(config)
    exchange.fields(config)  # refuses what `transformers` lacks
    for ours, theirs in exchange.names(config):
        if ours + LORA_A in present:
            yield ours, theirs.removesuffix(_WEIGHT)


def _targets(config: ModelConfig, lora: LoraConfig, modules: Iterable[str]) -> list[str]:
    """Return the ends of the names of modules: PEFT expects those of all layers."""
    ends = [_end(module) for module in modules]
    all_ends = [
        _end(theirs.removesuffix(_WEIGHT)) for _, theirs in exchange_of(config).names(config)
    ]
    for end in ends:
        depth = all_ends.count(end)
        if ends.count(end) != depth:
            raise ConfigError(
                f"`lora.targets` ({', '.join(lora.targets)}) must match all layers or none for "
                f"PEFT, and {end} has an adapter in {ends.count(end)} of {depth}; export the "
                "merged model instead, without `--adapter`"
            )
    return sorted(set(ends))


def _end(module: str) -> str:
    """Return the name of a module within its layer."""
    return ".".join(module.split(".")[-2:])


def _fields(config: ModelConfig, lora: LoraConfig, *, targets: list[str]) -> dict[str, Any]:
    return {
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": exchange_of(config).is_inputs_first,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
