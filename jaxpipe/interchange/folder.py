"""Read and write the folder of a Hugging Face model: `config.json` and safetensors files."""

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, for which safetensors asks by name
import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange.gpt2_config import check_is_gpt2, config_of_gpt2, gpt2_config_of
from jaxpipe.interchange.gpt2_tensors import tensors_of_gpt2, to_gpt2_tensors
from jaxpipe.models import GptConfig
from jaxpipe.runtime.storage.atomic_write import mode_by_umask
from jaxpipe.topo.regular_file import check_inside, check_regular, read_regular

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MOST_JSON_BYTES = 2**26


def read_gpt2(folder: Path) -> tuple[GptConfig, dict[str, np.ndarray]]:
    """Return the configuration of a GPT-2 on disk, and its tensors under our names, in float32.

    Raises:
        ConfigError: the folder has no `config.json`, or one of another architecture.
        CheckpointError: a file is missing or corrupt, or does not fit the configuration.
    """
    config = config_of_gpt2(_json(folder / _CONFIG, ConfigError))
    tensors: dict[str, np.ndarray] = {}
    # Shards of a large model are one dictionary: their names do not overlap.
    for file in _files(folder):
        tensors |= _read(folder / file)
    return config, tensors_of_gpt2(tensors, config)


def write_gpt2(folder: Path, config: GptConfig, tensors: dict[str, np.ndarray]) -> None:
    """Write a model's tensors, under our names, as a folder that `transformers` opens.

    Raises:
        ConfigError: the model is not a GPT-2.
        CheckpointError: the folder cannot be written.
    """
    check_is_gpt2(config)
    # safetensors writes memory as it lies, whatever the strides of a view.
    theirs = {
        name: np.ascontiguousarray(tensor)
        for name, tensor in to_gpt2_tensors(tensors, config).items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mode_by_umask(folder / _WEIGHTS):
            # "pt": `transformers` refuses files without it.
            save_file(theirs, folder / _WEIGHTS, metadata={"format": "pt"})
        (folder / _CONFIG).write_bytes(
            msgspec.json.format(msgspec.json.encode(gpt2_config_of(config)), indent=2) + b"\n"
        )
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"an export needs a folder to write: {folder} cannot be written: {error}; name another"
        ) from error


def _files(folder: Path) -> list[str]:
    """Return the names of the files with tensors: those of the index, if there is one."""
    if not (folder / _INDEX).exists():
        return [_WEIGHTS]
    path = folder / _INDEX
    try:
        files = set(
            msgspec.convert(_json(path, CheckpointError)["weight_map"], dict[str, str]).values()
        )
        return sorted(check_inside(file, folder).name for file in files)
    except (KeyError, OSError, msgspec.ValidationError) as error:
        raise CheckpointError(
            f"`weight_map` must give the file of each tensor in this folder: {path} does not: "
            f"{error}; give the folder that `save_pretrained` wrote"
        ) from error


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        check_regular(path.stat(), path)  # links are: caches of downloads consist of them
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # NumPy has no such dtype: AttributeError or TypeError, as safetensors looks for it.
    except (OSError, SafetensorError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"tensors come as safetensors: {path} cannot be read ({error}); save the model with "
            "`save_pretrained`, which writes that"
        ) from error


def _json(path: Path, error_type: type[ConfigError] | type[CheckpointError]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(
            read_regular(path, most_bytes=_MOST_JSON_BYTES), type=dict[str, Any]
        )
    except (OSError, RecursionError, msgspec.MsgspecError) as error:
        raise error_type(
            f"a model is a folder with {path.name}: {path} cannot be read ({error}); give the "
            "folder that `save_pretrained` wrote"
        ) from error
