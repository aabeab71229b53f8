"""Read and write the folder of a Hugging Face model: `config.json` and safetensors files.

A decoder of the Llama type is read piece by piece and written file by file; a GPT-2, whose largest
size has 6 GB, in one piece.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange.gpt2_config_json import check_is_gpt2, config_of_gpt2, gpt2_config_of
from jaxpipe.interchange.gpt2_tensors import tensors_of_gpt2, their_names, to_gpt2_tensors
from jaxpipe.interchange.llama_config_json import ARCHITECTURES, config_of_llama, llama_config_of
from jaxpipe.interchange.llama_tensors import (
    TensorPair,
    known_pairs,
    llama_pairs,
    pieces_of,
    to_theirs,
)
from jaxpipe.interchange.tensor_files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    TensorFiles,
    open_tensors,
    read_json,
)
from jaxpipe.models import GptConfig, LlamaConfig, ModelConfig, family_of
from jaxpipe.runtime.checkpoint import Read, StreamedTensor
from jaxpipe.runtime.storage.atomic_write import mode_by_umask

Streamed: TypeAlias = Iterator[StreamedTensor]

FILE_BYTES = 2**30
"""The size at which a file of an export is full."""


def read_model(folder: Path) -> tuple[ModelConfig, Streamed]:
    """Return the configuration of a model on disk, and its tensors under our names, in float32.

    Names and configuration are checked at once, each tensor as its pieces are taken.

    Raises:
        ConfigError: the folder has no `config.json`, or one of another architecture.
        CheckpointError: a file is missing or corrupt, or does not fit the configuration.
    """
    fields = read_json(folder / CONFIG, ConfigError)
    if fields.get("model_type") not in ARCHITECTURES:
        config, tensors = _gpt2(folder, fields)
        return config, (StreamedTensor.of(name, tensor) for name, tensor in tensors.items())
    model, files = config_of_llama(fields), open_tensors(folder)
    pairs = known_pairs(model, files.files)
    return model, _streamed(files, pairs)


def read_gpt2(folder: Path) -> tuple[GptConfig, dict[str, np.ndarray]]:
    """Return the configuration of a GPT-2 on disk, and its tensors under our names, in float32.

    Raises:
        ConfigError: the folder has no `config.json`, or one of another architecture.
        CheckpointError: a file is missing or corrupt, or does not fit the configuration.
    """
    return _gpt2(folder, read_json(folder / CONFIG, ConfigError))


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFiles:
    """The form of a family in the files of `transformers`.

    Args:
        names: our name and theirs of each tensor of a configuration.
        fields: the fields of `config.json`; raises `ConfigError` for a model that has none.
        write: writes the tensors of a configuration and its fields into a folder.
        is_inputs_first: whether their kernels are (inputs, outputs), as ours.
    """

    names: Callable[[Any], Iterable[tuple[str, str]]]
    fields: Callable[[Any], dict[str, Any]]
    write: Callable[[Path, Any, dict[str, Any], Read], None]
    is_inputs_first: bool


def exchange_of(config: ModelConfig) -> FamilyFiles:
    """Return the form of a model's family in the files of `transformers`.

    Raises:
        ConfigError: it has none.
    """
    name = family_of(config).name
    exchanges = {
        "gpt": FamilyFiles(
            names=their_names, fields=_gpt2_fields, write=_write_gpt2, is_inputs_first=True
        ),
        "llama": FamilyFiles(
            names=_llama_names, fields=llama_config_of, write=_write_llama, is_inputs_first=False
        ),
    }
    if name not in exchanges:
        raise ConfigError(
            f"`model.family` must be one that `transformers` has, {' or '.join(exchanges)}, to be "
            f"exported, not {name!r}; read the tensors of the checkpoint instead"
        )
    return exchanges[name]


def our_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names that the parameters of the whole model have in a checkpoint."""
    return tuple(ours for ours, _ in exchange_of(config).names(config))


def write_model(folder: Path, config: ModelConfig, read: Read) -> str:
    """Write a model as a folder that `transformers` opens; return the name of its class.

    `read` returns tensors by our names, those of one file at a time.

    Raises:
        ConfigError: the model is none that `transformers` has.
        CheckpointError: the folder cannot be written, or a tensor is missing.
    """
    exchange = exchange_of(config)
    fields = exchange.fields(config)
    exchange.write(folder, config, fields, read)
    return str(fields["architectures"][0])


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
    _write(folder, {WEIGHTS: theirs}.items(), gpt2_config_of(config))


def _gpt2_fields(config: GptConfig) -> dict[str, Any]:
    check_is_gpt2(config)
    return gpt2_config_of(config)


def _write_gpt2(folder: Path, config: GptConfig, fields: dict[str, Any], read: Read) -> None:
    del fields  # written with the tensors
    write_gpt2(folder, config, dict(read(our_names(config))))


def _llama_names(config: LlamaConfig) -> Iterator[tuple[str, str]]:
    return ((pair.ours, pair.theirs) for pair in llama_pairs(config))


def _gpt2(folder: Path, fields: dict[str, Any]) -> tuple[GptConfig, dict[str, np.ndarray]]:
    config, files = config_of_gpt2(fields), open_tensors(folder)
    return config, tensors_of_gpt2({name: files.read(name) for name in files.files}, config)


def _streamed(files: TensorFiles, pairs: Iterable[TensorPair]) -> Streamed:
    for pair in pairs:
        yield StreamedTensor(pair.ours, pair.shape, partial(pieces_of, files, pair))


def _write_llama(folder: Path, config: LlamaConfig, fields: dict[str, Any], read: Read) -> None:
    shards = tuple(_shards(llama_pairs(config)))
    if len(shards) == 1:
        names = (WEIGHTS,)
    else:
        number = len(shards)
        names = tuple(f"model-{i + 1:05d}-of-{number:05d}.safetensors" for i in range(number))

    def files() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for name, pairs in zip(names, shards, strict=True):
            ours = read([pair.ours for pair in pairs])
            yield name, {pair.theirs: _theirs(ours[pair.ours], pair) for pair in pairs}

    _write(folder, files(), fields)
    if len(shards) > 1:
        where = {
            pair.theirs: name for name, pairs in zip(names, shards, strict=True) for pair in pairs
        }
        size = sum(4 * int(np.prod(pair.shape)) for pairs in shards for pair in pairs)
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": where})


def _theirs(tensor: np.ndarray, pair: TensorPair) -> np.ndarray:
    return to_theirs(np.asarray(tensor, np.float32), pair)


def _shards(pairs: Iterable[TensorPair]) -> Iterator[tuple[TensorPair, ...]]:
    shard: list[TensorPair] = []
    size = 0
    for pair in pairs:
        num_bytes = 4 * int(np.prod(pair.shape))
        if shard and size + num_bytes > FILE_BYTES:
            yield tuple(shard)
            shard, size = [], 0
        shard.append(pair)
        size += num_bytes
    yield tuple(shard)


def _write(
    folder: Path, files: Iterable[tuple[str, dict[str, np.ndarray]]], fields: dict[str, Any]
) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in files:
            with mode_by_umask(folder / name):
                # "pt": `transformers` refuses files without it.
                save_file(tensors, folder / name, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error
    _write_json(folder / CONFIG, fields)


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n")
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def _unwritable(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"an export needs a folder to write: {folder} cannot be written: {error}; name another"
    )
