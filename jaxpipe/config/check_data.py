"""Check that datasets are for the model of a configuration: their samples, and enough of them."""

from collections.abc import Sequence
from pathlib import Path

from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError
from jaxpipe.models import experts_are_by_token
from jaxpipe.runtime.checkpoint import committed
from jaxpipe.runtime.data import (
    Dataset,
    InputShape,
    Labels,
    Mixture,
    dataset_folder,
    load_byte_pairs,
    mixture_of,
    open_dataset,
    same_tokens,
)
from jaxpipe.runtime.data.dataset.record import RECORD
from jaxpipe.runtime.data.dataset.tokenizer_config import TOKENIZER
from jaxpipe.runtime.data.dataset.tokenizer_files import read_tokenizer_files


def check_data(config: Config, datasets: Sequence[Dataset]) -> None:
    """Check that the model can be trained on datasets, in the order of `data.folders`.

    Raises:
        ConfigError: the tokens, labels or shapes of a dataset are not those of the model, or too
            few samples are held out.
        DataError: a split has not enough samples, or datasets cannot be mixed.
    """
    _check_counted(config, datasets)
    for folder, dataset in zip(config.data.folders, datasets, strict=True):
        _check_dataset(config, dataset, folder=folder)
    _check_tokenizer(config, datasets[0], Path(config.run.folder))
    mixture = mixture_from(config, datasets)
    if not config.train.eval_every:
        return
    batches = mixture.num_eval_batches(batch=config.train.batch)
    sequence = config.train.sequence or config.model.sequence
    unit = "samples" if mixture.labelled_input else f"samples of {sequence} tokens"
    if (config.train.eval_batches or 1) > batches:
        raise ConfigError(
            f"`train.eval_batches` is {config.train.eval_batches}, but the held-out split of "
            f"{', '.join(config.data.folders)} has only {batches} batches of {config.train.batch} "
            f"{unit}; lower it, leave it out, or hold out more with `jaxpipe data prepare`"
        )


def mixture_from(config: Config, datasets: Sequence[Dataset]) -> Mixture:
    """Return the mixture of a run's datasets, in the order of `data.folders`.

    Raises:
        DataError: a split has not enough samples, or datasets cannot be mixed.
    """
    return mixture_of(
        datasets,
        config.data.weights,
        sequence=config.train.sequence or config.model.sequence,
        pack=config.data.pack,
        evaluates=config.train.eval_every > 0,
    )


def check_prepared_data(config: Config) -> None:
    """Check the headers of datasets that are there; those of a plan may be prepared later.

    Raises:
        ConfigError, DataError: as for `check_data`.
    """
    if datasets := _prepared(config):
        check_data(config, datasets)


def check_source_tokenizer(config: Config, source: Path) -> None:
    """Check that the run that another one starts has its tokenizer, if the datasets are there.

    Raises:
        ConfigError: the datasets have another one than the run in `source`.
        DataError: a dataset cannot be read.
    """
    if datasets := _prepared(config):
        _check_tokenizer(config, datasets[0], source)


def _prepared(config: Config) -> list[Dataset]:
    """Return the datasets of a run, with their headers checked; none if one is not there."""
    folders = [dataset_folder(folder) for folder in config.data.folders]
    if all(isinstance(folder, Path) and (folder / RECORD).exists() for folder in folders):
        return [open_dataset(folder, verify=False) for folder in folders]
    return []


def _check_counted(config: Config, datasets: Sequence[Dataset]) -> None:
    """Check that the model supports tokens that do not count, if there are."""
    experts = getattr(config.model, "experts", 0)
    are_all_counted = all(dataset.counted is None for dataset in datasets)
    if not (are_all_counted or experts_are_by_token(config.model)):
        raise ConfigError(
            f"`model.experts` ({experts}) needs data in which all tokens count, since the balance "
            "of experts is a mean over them; set it to 0, or prepare the data without prompts"
        )


def _check_tokenizer(config: Config, dataset: Dataset, folder: Path) -> None:
    """Check that the run in a folder, if it has begun or was imported, has a dataset's tokenizer.

    The folder may be on another host, where the same is checked.
    """
    path = folder / TOKENIZER
    if dataset.labels is not None or not path.is_file() or not committed(folder):
        return
    if read_tokenizer_files(path)[TOKENIZER] == dataset.tokenizer.files.get(TOKENIZER):
        return  # without loading it once more
    if not same_tokens(load_byte_pairs(path), dataset.tokenizer):
        raise ConfigError(
            f"`data.folder` ({config.data.folders[0]}) must have the tokenizer of the model, "
            f"{path}; prepare it with `jaxpipe data prepare --tokenizer {folder}`, or name the "
            "folder of another run"
        )


def _check_dataset(config: Config, dataset: Dataset, *, folder: str) -> None:
    if dataset.vocabulary > config.model.vocabulary:
        raise ConfigError(
            f"`model.vocabulary` ({config.model.vocabulary}) must be at least that of the dataset "
            f"{folder}, {dataset.vocabulary}; set it to that"
        )
    if dataset.labels is not None:
        _check_labelled(config, dataset, dataset.labels, folder=folder)
    elif config.model.classes:
        raise ConfigError(
            f"`model.classes` ({config.model.classes}) needs labels, and the dataset {folder} has "
            "none; set it to 0, or prepare the data with `--kind labelled-text` or `pictures`"
        )


def _check_labelled(config: Config, dataset: Dataset, labels: Labels, *, folder: str) -> None:
    model, count = config.model, len(labels.classes)
    if model.classes < count:
        raise ConfigError(
            f"`model.classes` ({model.classes}) must be at least that of the labels in the dataset "
            f"{folder}, {count}; set it to that"
        )
    sequence = config.train.sequence or model.sequence
    expected = InputShape.of_model(picture=model.picture, sequence=sequence)
    if (labelled_input := dataset.labelled_input) != expected:
        assert labelled_input is not None, labels
        raise ConfigError(
            f"`data.folder` must have inputs of the shape that `model` takes, {expected.shape}, "
            f"not {labelled_input.shape}; change `model.sequence`, `model.patch` or "
            "`model.channels`, or prepare the data again"
        )
