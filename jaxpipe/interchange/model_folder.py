"""Read and write the folder of a Hugging Face model: `config.json` and safetensors files.

A decoder of the Llama type is read piece by piece; a GPT-2, whose largest size has 6 GB, in one
piece. Both are written file by file.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange.architectures import ARCHITECTURES
from jaxpipe.interchange.checked_tensor import in_format
from jaxpipe.interchange.gpt2_config_json import check_is_gpt2, config_of_gpt2, gpt2_config_of
from jaxpipe.interchange.gpt2_tensors import shape_of, tensors_of_gpt2, their_names, to_gpt2_tensor
from jaxpipe.interchange.lacking_architectures import LACKING
from jaxpipe.interchange.llama_config_json import config_of_llama, llama_config_of
from jaxpipe.interchange.llama_tensors import (
    TensorPair,
    check_tied,
    known_pairs,
    llama_pairs,
    pieces_of,
    to_theirs,
)
from jaxpipe.interchange.other_formats import way_in
from jaxpipe.interchange.tensor_files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    TensorFiles,
    open_tensors,
    read_json,
)
from jaxpipe.models import GptConfig, LlamaConfig, ModelConfig, family_of
from jaxpipe.models.gpt_config import DTYPE_BYTES
from jaxpipe.runtime.checkpoint import Read, StreamedTensor
from jaxpipe.runtime.storage.atomic_write import mode_by_umask

Streamed: TypeAlias = Iterator[StreamedTensor]

FILE_BYTES = 2**30
"""The size at which a file of an export is full."""


NO_TENSORS: Final = TensorFiles({})


def read_model(
    folder: Path, *, ignored: Collection[str] = (), replaced: TensorFiles = NO_TENSORS
) -> tuple[ModelConfig, Streamed]:
    """Return the configuration of a model on disk, and its tensors under our names, in float32.

    Names and configuration are checked at once, each tensor as its pieces are taken. Fields of
    `config.json` that are `ignored` need not be known. Those `replaced` count in place of those of
    the folder with the same names.

    Raises:
        ConfigError: the folder has no `config.json`, or one of another architecture.
        CheckpointError: a file is missing or corrupt, or does not fit the configuration.
    """
    if (folder / "adapter_config.json").exists():  # `transformers` would put it on the model
        raise ConfigError(way_in(folder))
    fields = read_json(folder / CONFIG, ConfigError)
    kind = fields.get("model_type")
    record = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if record is None:
        _check_is_known(kind)
        config, tensors = _gpt2(folder, fields, ignored, replaced)
        return config, (StreamedTensor.of(name, tensor) for name, tensor in tensors.items())
    model = config_of_llama(fields, ignored)
    files = open_tensors(folder).with_others(replaced)
    pairs = known_pairs(model, files.files, record)
    if model.tied:
        check_tied(files, pairs[0].theirs)
    return model, _streamed(files, pairs)


def _check_is_known(kind: object) -> None:
    if kind is None or kind == "gpt2":  # which the fields of a GPT-2 refuse by name
        return
    lacking = LACKING.get(kind) if isinstance(kind, str) else None
    reason = f", which lacks {lacking}" if lacking else ""
    raise ConfigError(
        f"`model_type` in `config.json` is {kind!r:.80}, and must be gpt2 or "
        f"{' or '.join(ARCHITECTURES)} for jaxpipe{reason}; such a model cannot be imported"
    )


def read_gpt2(folder: Path) -> tuple[GptConfig, dict[str, np.ndarray]]:
    """Return the configuration of a GPT-2 on disk, and its tensors under our names, in float32.

    Raises:
        ConfigError: the folder has no `config.json`, or one of another architecture.
        CheckpointError: a file is missing or corrupt, or does not fit the configuration.
    """
    return _gpt2(folder, read_json(folder / CONFIG, ConfigError), (), NO_TENSORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportForm:
    """What a model does not say of its export.

    Args:
        kind: the architecture, of several that are the same model; None for the first.
        dtype: the format of the tensors, one of `DTYPE_BYTES`.
        fields: further fields of `config.json`, such as the ids of special tokens.
    """

    kind: str | None = None
    dtype: str = "float32"
    fields: Mapping[str, Any] = field(default_factory=dict)


PLAIN_FORM: Final = ExportForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFiles:
    """The form of a model in the files of `transformers`.

    Args:
        fields: the fields of `config.json`.
        pairs: our name and theirs of each tensor; those that are one of theirs follow each other,
            and so do those that are equal parts of one of ours.
        shapes: our shapes of them.
        convert: takes our tensors and one of their names, and returns theirs.
        is_inputs_first: whether their kernels are (inputs, outputs), as ours.
        experts: the number of the expert, where theirs is of one and ours of all.
    """

    fields: Mapping[str, Any]
    pairs: tuple[tuple[str, str], ...]
    shapes: Callable[[str], tuple[int, ...]]
    convert: Callable[[Mapping[str, np.ndarray], str], np.ndarray]
    is_inputs_first: bool
    experts: Mapping[str, int] = field(default_factory=dict)

    @property
    def theirs(self) -> dict[str, tuple[str, ...]]:
        """Return their names, each with those of our tensors that it holds."""
        grouped: dict[str, tuple[str, ...]] = {}
        for ours, theirs in self.pairs:
            grouped[theirs] = (*grouped.get(theirs, ()), ours)
        return grouped

    def kernel_shape(self, theirs: str, ours: str) -> tuple[int, ...]:
        """Return our shape of a kernel that is one of theirs, or a part: inputs, then outputs."""
        shape = self.shapes(ours)
        return shape[1:] if theirs in self.experts else shape


def exchange_of(config: ModelConfig, kind: str | None = None) -> FamilyFiles:
    """Return the form of a model in the files of `transformers`, of an architecture if it fits.

    Raises:
        ConfigError: it has none.
    """
    exchanges: dict[str, Callable[[Any, str | None], FamilyFiles]] = {
        "gpt": _gpt2_files,
        "llama": _llama_files,
    }
    name = family_of(config).name
    if name not in exchanges:
        raise ConfigError(
            f"`model.family` must be one that `transformers` has, {' or '.join(exchanges)}, to be "
            f"exported, not {name!r}; read the tensors of the checkpoint instead"
        )
    return exchanges[name](config, kind)


def our_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names that the parameters of the whole model have in a checkpoint."""
    return tuple(dict.fromkeys(ours for ours, _ in exchange_of(config).pairs))


def write_model(
    folder: Path, config: ModelConfig, read: Read, form: ExportForm = PLAIN_FORM
) -> str:
    """Write a model as a folder that `transformers` opens; return the name of its class.

    `read` returns tensors by our names, those of one file at a time.

    Raises:
        ConfigError: the model is none that `transformers` has, or has weights that are infinite in
            the format.
        CheckpointError: the folder cannot be written, or a tensor is missing.
    """
    files = exchange_of(config, form.kind)
    ours_of, sizes = files.theirs, _sizes(files, DTYPE_BYTES[form.dtype])
    shards = tuple(_shards(sizes))
    names = (WEIGHTS,)
    if len(shards) > 1:
        number = len(shards)
        names = tuple(f"model-{i + 1:05d}-of-{number:05d}.safetensors" for i in range(number))

    def written() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for name, shard in zip(names, shards, strict=True):
            ours = read(list(dict.fromkeys(name for theirs in shard for name in ours_of[theirs])))
            yield (
                name,
                {
                    theirs: in_format(files.convert(ours, theirs), form.dtype, theirs)
                    for theirs in shard
                },
            )

    formats = {"dtype": form.dtype, "torch_dtype": form.dtype}
    _write(folder, written(), {**files.fields, **formats, **form.fields})
    if len(shards) > 1:
        where = {
            theirs: name for name, shard in zip(names, shards, strict=True) for theirs in shard
        }
        total = sum(sizes.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    return str(files.fields["architectures"][0])


def write_gpt2(folder: Path, config: GptConfig, tensors: dict[str, np.ndarray]) -> None:
    """Write a model's tensors, under our names, as a folder that `transformers` opens.

    Raises:
        ConfigError: the model is not a GPT-2.
        CheckpointError: the folder cannot be written.
    """
    write_model(folder, config, lambda names: {name: tensors[name] for name in names})


def _gpt2_files(config: GptConfig, kind: str | None) -> FamilyFiles:
    del kind  # there is one
    check_is_gpt2(config)
    pairs = tuple(their_names(config))
    ours_of = {theirs: ours for ours, theirs in pairs}
    return FamilyFiles(
        fields=gpt2_config_of(config),
        pairs=pairs,
        shapes=lambda name: shape_of(name, config),
        convert=lambda ours, theirs: to_gpt2_tensor(ours[ours_of[theirs]], ours_of[theirs]),
        is_inputs_first=True,
    )


def _llama_files(config: LlamaConfig, kind: str | None) -> FamilyFiles:
    fields = llama_config_of(config, kind=kind)
    record = ARCHITECTURES[fields["model_type"]]
    pairs = tuple(llama_pairs(config, record))
    parts: dict[str, list[TensorPair]] = {}
    for pair in pairs:
        parts.setdefault(pair.theirs, []).append(pair)
    shapes = {pair.ours: pair.shape for pair in pairs}
    return FamilyFiles(
        fields=fields,
        pairs=tuple((pair.ours, pair.theirs) for pair in pairs),
        shapes=lambda name: shapes[name],
        convert=lambda ours, theirs: to_theirs(ours, parts[theirs]),
        is_inputs_first=False,
        experts={pair.theirs: pair.expert for pair in pairs if pair.expert is not None},
    )


def _gpt2(
    folder: Path, fields: dict[str, Any], ignored: Collection[str], replaced: TensorFiles
) -> tuple[GptConfig, dict[str, np.ndarray]]:
    config = config_of_gpt2(fields, ignored)
    files = open_tensors(folder).with_others(replaced)
    if config.tied:
        table = next((n for n in files.files if n.endswith("wte.weight")), None)
        if table is not None:
            check_tied(files, table)
    return config, tensors_of_gpt2({name: files.read(name) for name in files.files}, config)


def _streamed(files: TensorFiles, pairs: Iterable[TensorPair]) -> Streamed:
    for ours, of_one in groupby(pairs, key=lambda pair: pair.ours):
        parts = tuple(of_one)
        yield StreamedTensor(ours, parts[0].shape, partial(_pieces, files, parts))


def _pieces(files: TensorFiles, parts: Sequence[TensorPair]) -> Iterator[np.ndarray]:
    for pair in parts:
        yield from pieces_of(files, pair)


def _sizes(files: FamilyFiles, value_bytes: int) -> dict[str, int]:
    """Return the bytes of each of their tensors."""
    num_parts = Counter(ours for ours, _ in files.pairs)
    return {
        theirs: value_bytes * sum(prod(files.shapes(name)) // num_parts[name] for name in ours)
        for theirs, ours in files.theirs.items()
    }


def _shards(sizes: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield their names of the tensors of one file after the other."""
    shard: list[str] = []
    size = 0
    for theirs, num_bytes in sizes.items():
        if shard and size + num_bytes > FILE_BYTES:
            yield tuple(shard)
            shard, size = [], 0
        shard.append(theirs)
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
