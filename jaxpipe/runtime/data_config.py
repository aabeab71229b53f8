"""The section `[data]` of the configuration: one dataset, or a mixture."""

from dataclasses import dataclass
from typing import Annotated

from jaxpipe.ranges import Range, check_ranges
from jaxpipe.runtime.path_checks import check_dataset_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One source of a mixture, `[[data.sources]]`."""

    folder: str
    """A prepared dataset: a folder written by `jaxpipe data prepare`, or its URL."""
    weight: Annotated[float, Range(above=0, most=1e9)] = 1.0
    """The share of the source in the tokens of training, relative to the weights of the others."""

    def __post_init__(self) -> None:
        check_dataset_folder(self.folder)
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The data to train on: one dataset, or a mixture of several.

    Each source of a mixture, a table `[[data.sources]]`, has a `folder` and a `weight`, 1 by
    default. The order of the samples depends on `run.seed` alone.
    """

    folder: str | None = None
    """A prepared dataset: a folder written by `jaxpipe data prepare`, or where it lies in object
    storage, as `s3://BUCKET/PREFIX` or another URL of fsspec, with the extra `object-storage`: each
    rank reads what it needs."""
    sources: tuple[DataSource, ...] = ()
    """The datasets of a mixture, in place of `folder`; they have the same tokenizer."""
    pack: bool = False
    """Whether a sample is whole documents, as many as fit, in which no token reads another
    document; otherwise samples are windows of one stream of tokens."""

    def __post_init__(self) -> None:
        if self.folder is None and not self.sources:
            raise ValueError("`folder` is missing; name a dataset, or give `sources`")
        if self.folder is not None and self.sources:
            raise ValueError(
                f"`folder` ({self.folder:.80}) and `sources` ({len(self.sources)} tables) exclude "
                "each other; remove one"
            )
        if self.folder is not None:
            check_dataset_folder(self.folder)
        if len(set(self.folders)) < len(self.folders):
            raise ValueError(
                f"`sources` has a folder twice ({', '.join(self.folders):.200}); raise the "
                "`weight` of one instead"
            )

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of all datasets."""
        return (self.folder,) if self.folder is not None else tuple(s.folder for s in self.sources)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of all datasets."""
        return tuple(source.weight for source in self.sources) or (1.0,)
