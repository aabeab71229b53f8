"""What an export has to know of the import that a run began with: `import.json` in its folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from jaxpipe import foreign_file
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange.tensor_files import CONFIG, TensorFiles, open_tensors, read_json
from jaxpipe.models.gpt_config import DTYPE_BYTES

IMPORT_RECORD: Final = "import.json"
SPECIAL: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
_FORMAT: Final = 1
_DTYPES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_MOST_BYTES: Final = 2**26


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of an imported model.

    Args:
        format: the version of this file.
        base: the name or the folder of the model; None if its parameters have been trained since.
        dtype: the format of its tensors.
        config: the fields of its `config.json`.
        replaced: the names of tensors of the model that adapters have brought along.
    """

    format: int
    base: str | None
    dtype: str
    config: dict[str, Any]
    replaced: tuple[str, ...] = ()

    @property
    def special(self) -> dict[str, Any]:
        """The ids of special tokens that it states."""
        return {name: self.config[name] for name in SPECIAL if name in self.config}


def record_of(folder: Path, *, replaced: Iterable[str] = ()) -> ImportRecord:
    """Return the record of a model in a folder, of which some tensors are `replaced`.

    Raises:
        ConfigError, CheckpointError: its files cannot be read.
    """
    config = read_json(folder / CONFIG, ConfigError)
    name = config.get("_name_or_path")
    is_name = isinstance(name, str) and bool(name) and not Path(name).exists()
    return ImportRecord(
        format=_FORMAT,
        base=str(name) if is_name else str(folder.resolve()),
        dtype=_dtype(open_tensors(folder)),
        config=config,
        replaced=tuple(sorted(replaced)),
    )


def _dtype(files: TensorFiles) -> str:
    """Return the format of the tensors; of several, the one that holds all values exactly."""
    dtypes = {_DTYPES.get(files.dtype(name), "float32") for name in files.files}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def keep_record(record: ImportRecord, run: Path) -> None:
    """Write the record into the folder of a run.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        (run / IMPORT_RECORD).write_bytes(
            msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        )
    except OSError as error:
        raise CheckpointError(f"`--out` {run} cannot be written: {error}; name another") from error


def read_record(run: Path) -> ImportRecord | None:
    """Return the record of the import that a run began with; None if it began otherwise.

    Raises:
        CheckpointError: it cannot be read, or is of another version.
    """
    path = run / IMPORT_RECORD
    if not path.exists():
        return None
    try:
        record = foreign_file.read_json(path, ImportRecord, most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"`{IMPORT_RECORD}` in {run} cannot be read: {foreign_file.reason_of(error)}; remove "
            "it, and export with `--dtype` and `--base`"
        ) from error
    if record.format != _FORMAT or record.dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"`{IMPORT_RECORD}` in {run} must have format {_FORMAT} and a dtype of "
            f"{', '.join(DTYPE_BYTES)}, not {record.format} and {record.dtype!r:.40}; remove it, "
            "and export with `--dtype` and `--base`"
        )
    return record


def special_tokens(record: ImportRecord | None, separator: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the ids of special tokens: those of the import, or the end that data are written with.

    >>> special_tokens(None, (7,))
    {'bos_token_id': None, 'eos_token_id': 7, 'pad_token_id': None}
    """
    if record is not None:
        return record.special
    # `transformers` would take those of another tokenizer for missing ones.
    end = separator[0] if len(separator) == 1 else None
    return {**dict.fromkeys(SPECIAL), "eos_token_id": end}
