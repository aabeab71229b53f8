"""The data of a run: one dataset, or a mixture of several, as batches of samples.

::

    [[data.sources]] ─► dataset ─► Split ─┐
    [[data.sources]] ─► dataset ─► Split ─┴─► Mixture ─► train_samples(step), eval_samples(index)

A batch depends on the seed and on its number alone; a rank may read only some of its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.byte_pairs import same_tokens
from jaxpipe.runtime.data.dataset.dataset import Dataset, InputShape
from jaxpipe.runtime.data.order.batches import check_length, serial_numbers
from jaxpipe.runtime.data.order.packing import packed_rows
from jaxpipe.runtime.data.order.position import Position
from jaxpipe.runtime.data.order.samples import LabelledRows, Numbers, Samples, Split, Windows
from jaxpipe.runtime.data.order.source_order import assign, counts, seed_of_source, shares_of

_AT_0 = Position()
_MORE_TEXT = "prepare a larger text with `jaxpipe data prepare`"
_MORE_HELD_OUT = (
    "hold out more with `jaxpipe data prepare --eval-fraction` or `--validation`, or set "
    "`train.eval_every` to 0"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The training and the held-out split of each source, and the shares of the sources.

    With one source, samples are those of the source in its own order. `labelled_input` is the shape
    of an input with a label; None if samples are windows of tokens. `masked` is whether some tokens
    do not count, `packed` whether a sample is several documents that are kept apart. Without
    held-out splits, no loss of them can be measured.
    """

    train: tuple[Split, ...]
    eval: tuple[Split, ...] = ()
    shares: tuple[int, ...] = (1,)
    labelled_input: InputShape | None = None
    masked: bool = False
    packed: bool = False

    def __post_init__(self) -> None:
        assert len(self.train) == len(self.shares) > 0, self.shares
        assert len(self.eval) in (0, len(self.train)), self.eval

    def train_samples(
        self,
        *,
        seed: int,
        step: int,
        batch: int,
        rows: range | None = None,
        position: Position = _AT_0,
    ) -> Samples:
        """Return the training batch of a step, or only some `rows` of it.

        `position` is where an earlier batch size has ended.
        """
        before = position.first_sample(step, batch=batch)
        serials = before + serial_numbers(step=0, batch=batch, rows=rows)
        if len(self.train) == 1:
            return self.train[0].draw(serials, seed=seed)

        def of_source(source: int, indices: Numbers) -> Samples:
            return self.train[source].draw(indices, seed=seed_of_source(seed, source))

        return self._gathered(*assign(serials, self.shares, seed=seed), of_source)

    def eval_samples(self, *, index: int, batch: int, rows: range | None = None) -> Samples:
        """Return one evaluation batch, or only some `rows` of it: the same in each run.

        `index` lies in `range(num_eval_batches(...))`.
        """
        serials = serial_numbers(step=index, batch=batch, rows=rows)
        if len(self.eval) == 1:
            return self.eval[0].read(serials)
        read = lambda source, indices: self.eval[source].read(indices)  # noqa: E731
        return self._gathered(*assign(serials, self.shares), read)

    def num_eval_batches(self, *, batch: int) -> int:
        """Return the number of full batches with held-out samples that are all different.

        Raises:
            DataError: there is none.
        """
        held = [split.num_samples for split in self.eval]
        found, beyond = 0, sum(held) // batch + 1
        # Bisection: the number of samples of each source grows with the number of batches.
        while beyond - found > 1:
            middle = (found + beyond) // 2
            needs = counts(middle * batch, self.shares)
            fits = all(need <= has for need, has in zip(needs, held, strict=True))
            found, beyond = (middle, beyond) if fits else (found, middle)
        if not found:
            raise DataError(
                f"`train.batch` must be at most the {' + '.join(map(str, held))} samples in the "
                f"eval split, in the shares of their sources, not {batch}; lower it, "
                f"{_MORE_HELD_OUT}"
            )
        return found

    def _gathered(
        self, sources: Numbers, indices: Numbers, read: Callable[[int, Numbers], Samples]
    ) -> Samples:
        """Return the samples of each row, each source read at once.

        Their form is that of the mixture, whichever sources the rows are of.
        """
        numbers = np.unique(sources) if len(sources) else (0,)
        samples = {int(s): read(int(s), indices[sources == s]) for s in numbers}
        if not self.masked and self.labelled_input is None:
            return Samples(rows=_woven(sources, {s: part.rows for s, part in samples.items()}))
        inputs = _woven(sources, {s: part.inputs for s, part in samples.items()})
        labels = _woven(sources, {s: part.targets for s, part in samples.items()})
        if not self.packed:
            return Samples(rows=inputs, labels=labels)
        segments = _woven(sources, {s: part.segments for s, part in samples.items()})
        return Samples(rows=inputs, labels=labels, segments=segments)


def mixture_of(
    datasets: Sequence[Dataset],
    weights: Sequence[float],
    *,
    sequence: int,
    pack: bool = False,
    evaluates: bool = True,
) -> Mixture:
    """Return the mixture of datasets by their weights; samples of text have `sequence` tokens.

    With `pack`, samples are whole documents. What is held out is left alone, unless a run
    `evaluates`.

    Raises:
        DataError: a split is shorter than a sample, sources have different tokens, several have
            labels, or documents are to be packed and are unknown.
    """
    if len(datasets) > 1:
        _check_alike(datasets)
    train, held_out = (
        tuple(_split(dataset, name, sequence=sequence, pack=pack) for dataset in datasets)
        if evaluates or name == "train"
        else ()
        for name in ("train", "eval")
    )
    return Mixture(
        train=train,
        eval=held_out,
        shares=shares_of(weights),
        labelled_input=datasets[0].labelled_input,
        masked=pack or any(each.counted is not None for each in datasets),
        packed=pack,
    )


def _split(dataset: Dataset, name: str, *, sequence: int, pack: bool) -> Split:
    tokens, shape = getattr(dataset, name), dataset.labelled_input
    if dataset.labels is None or shape is None:
        counted = None if dataset.counted is None else getattr(dataset.counted, name)
        fix = _MORE_HELD_OUT if name == "eval" else _MORE_TEXT
        split = f"the {name} split of {dataset.source}"
        check_length(tokens, sequence=sequence, split=split, fix=fix)
        if not pack:
            return Windows(tokens=tokens, sequence=sequence, counted=counted)
        if dataset.documents is None:
            raise DataError(
                f"`pack` needs the ends of documents, which {dataset.source} has not: an older "
                "version prepared it; prepare it again with `jaxpipe data prepare`"
            )
        ends = getattr(dataset.documents, name)
        return packed_rows(tokens, ends, sequence=sequence, counted=counted)
    if pack:
        raise DataError(
            f"`pack` is for text, {dataset.source} has labels; remove it, or name another dataset"
        )
    return LabelledRows(inputs=tokens, labels=getattr(dataset.labels, name), dtype=shape.dtype)


def _check_alike(datasets: Sequence[Dataset]) -> None:
    for each in datasets:
        if each.labels is not None:
            raise DataError(
                f"`sources` must be text without labels, {each.source} has labels; name it alone, "
                "as `folder`"
            )
        if not same_tokens(each.tokenizer, datasets[0].tokenizer):
            raise DataError(
                f"`sources` must have the same tokens: the tokenizer of {each.source} is not that "
                f"of {datasets[0].source}; prepare it with the tokenizer.json of the other"
            )


def _woven(sources: Numbers, parts: dict[int, Any]) -> Any:
    first = next(iter(parts.values()))
    out = np.empty((len(sources), *first.shape[1:]), first.dtype)
    for source, part in parts.items():
        out[sources == source] = part
    return out
