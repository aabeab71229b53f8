"""Check that a dataset is one for the model of a configuration: its samples, and enough of them."""

from jaxpipe.config.read import Config
from jaxpipe.errors import ConfigError, DataError
from jaxpipe.runtime.data import Dataset, InputShape, Labels, num_eval_batches, sample


def check_data(config: Config, dataset: Dataset) -> None:
    """Check that the model can be trained on a dataset.

    Raises:
        ConfigError: the tokens, labels or shapes of the dataset are not those of the model, or too
            few samples are held out.
        DataError: a split has not enough samples.
    """
    if dataset.vocabulary > config.model.vocabulary:
        raise ConfigError(
            f"every token has an embedding: `model.vocabulary` is {config.model.vocabulary}, the "
            f"dataset {config.data.folder} has {dataset.vocabulary} tokens; set it to that"
        )
    sequence = config.train.sequence or config.model.sequence
    if dataset.labels is None:
        _check_unlabelled(config)
        # Refuses a split without a whole sample.
        sample(dataset.train, seed=0, step=0, batch=1, sequence=sequence)
        batches = num_eval_batches(dataset.eval, batch=config.train.batch, sequence=sequence)
        each = f"samples of {sequence} tokens"
    else:
        _check_labelled(config, dataset, dataset.labels)
        batches = _labelled_batches(len(dataset.labels.eval), batch=config.train.batch)
        each = "samples"
    if config.train.eval_batches > batches:
        raise ConfigError(
            f"`train.eval_batches` is {config.train.eval_batches}, but the held-out split of "
            f"{config.data.folder} has only {batches} batches of {config.train.batch} {each}; "
            "lower it, or hold out more"
        )


def _check_unlabelled(config: Config) -> None:
    if config.model.classes:
        raise ConfigError(
            f"a model of classes learns labels: `model.classes` is {config.model.classes}, the "
            f"dataset {config.data.folder} has none; set it to 0, or prepare the data with `--kind "
            "labelled-text` or `pictures`"
        )


def _check_labelled(config: Config, dataset: Dataset, labels: Labels) -> None:
    model, count = config.model, len(labels.classes)
    if model.classes < count:
        raise ConfigError(
            f"every label has a class: `model.classes` is {model.classes}, the dataset "
            f"{config.data.folder} has labels of {count} classes; set it to that"
        )
    sequence = config.train.sequence or model.sequence
    expected = InputShape.of_model(picture=model.picture, sequence=sequence)
    if (found := dataset.labelled_input) != expected:
        assert found is not None, labels
        raise ConfigError(
            f"the inputs of `data.folder` must have the shape that `model` takes, "
            f"{expected.shape}, not {found.shape}; change `model.sequence`, `model.patch` or "
            "`model.channels`, or prepare the data again"
        )


def _labelled_batches(num_samples: int, *, batch: int) -> int:
    if num_samples < batch:
        raise DataError(
            f"`batch` must be at most the {num_samples} samples in the eval split, not {batch}; "
            "lower it, or prepare the data with a larger `eval_fraction`"
        )
    return num_samples // batch
