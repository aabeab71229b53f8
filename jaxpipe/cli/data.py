"""`jaxpipe data prepare`: makes a dataset from text, from labelled text, or from pictures."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from jaxpipe.cli.data_request import check_same, request_of
from jaxpipe.errors import ConfigError, DataError
from jaxpipe.run.terminal.console import console
from jaxpipe.run.terminal.progress import Progress, showing_progress
from jaxpipe.runtime import data
from jaxpipe.runtime.data.dataset.record import RECORD

_NOT_COMPARED = ("out", "if_missing")
_NAMES = ("source", "validation", "tokenizer", "vocabulary", "sequence", "size", "samples")
_FLAGS = {"folder": "--out", "eval_fraction": "--eval-fraction", "on_bad": "--on-bad"}
_FLAGS |= {name: f"--{name}" for name in _NAMES}
_FLAGS |= {f"{name}_field": f"--{name}-field" for name in ("prompt", "completion", "messages")}


class SampleKind(StrEnum):
    """What a dataset has for samples."""

    TEXT = "text"
    """Windows of one stream of tokens, in which each token is the target of the one before it."""
    LABELLED_TEXT = "labelled-text"
    """Lines of a label, a tab and a text."""
    PICTURES = "pictures"
    """A folder of pictures with a subfolder per class."""


@contextmanager
def _named_as_flags() -> Iterator[None]:
    """Let errors name the options of the command in place of Python's parameters."""
    try:
        yield
    except DataError as error:
        words = str(error)
        for name, flag in _FLAGS.items():
            words = words.replace(f"`{name}`", f"`{flag}`")
        raise DataError(words) from error


def prepare(  # noqa: PLR0913  each is an option of the command line
    *,
    out: Path,
    kind: SampleKind = SampleKind.TEXT,
    source: Path | None = None,
    validation: Path | None = None,
    field: str = "text",
    prompt_field: str | None = None,
    completion_field: str | None = None,
    messages_field: str | None = None,
    layout: data.RecordLayout | None = None,
    special_tokens: data.SpecialTokens = data.SpecialTokens.OWN,
    on_bad: data.OnBad = data.OnBad.STOP,
    tokenizer: Path | None = None,
    vocabulary: int | None = None,
    sequence: int = 128,
    size: int = 32,
    samples: int = 4000,
    eval_fraction: float = 0.1,
    if_missing: bool = False,
) -> int:
    """Turn texts or pictures into files that `jaxpipe train` maps into memory.

    Tokens are bytes by default.

    Args:
        out: the folder to write.
        kind: text, labelled-text (lines of a label, a tab and a text), or pictures.
        source: a file of text, JSON, CSV, TSV, Parquet or Arrow, as it is or compressed, a folder
            of them, a pattern such as 'data/*.jsonl', or what save_to_disk of datasets wrote; by
            default the English manual that comes with Python. Of pictures, a folder with a
            subfolder per class; by default digits are drawn in many fonts.
        validation: a source of what is held out, all of it; by default the split of that name in
            a folder, or else a fraction of the source.
        field: the field of each record, a JSON line or a row, with the text.
        prompt_field: the field with a prompt, whose tokens do not count in the loss.
        completion_field: the field with the completion of the prompt.
        messages_field: the field with messages, of which those of the assistant count alone.
        layout: how a record holds a conversation: messages, sharegpt, alpaca, prompt-completion or
            preference; by default recognised by the fields of the first record.
        special_tokens: where the names of special tokens in a text are their ids: own (in texts,
            prompts and completions, not in messages), all, or none.
        on_bad: what a record does that cannot be read: stop (it ends the preparation), or skip (it
            is left out, counted, and written to bad-records.jsonl).
        tokenizer: the folder of a tokenizer, or its tokenizer.json, to use with what is beside it.
        vocabulary: train a byte-pair tokenizer of this size on the source.
        sequence: the length of a labelled text, in tokens; longer ones are cut.
        size: the height and width of pictures, in pixels.
        samples: the number of pictures to draw, without a source.
        eval_fraction: the fraction that is held out for evaluation.
        if_missing: do nothing if the folder holds a dataset already, of the same options and of
            files with the same content.
    """
    options = {name: value for name, value in locals().items() if name not in _NOT_COMPARED}
    if tokenizer is not None and vocabulary is not None:
        raise ConfigError(
            f"`--tokenizer` brings its own vocabulary: leave out `--vocabulary {vocabulary}`"
        )
    with _named_as_flags():
        request = request_of(options, is_text=kind is SampleKind.TEXT)
        if if_missing and (out / RECORD).exists():  # which is written last
            check_same(out, request)
            return 0
        if kind is SampleKind.TEXT:
            fields = data.Fields(
                text=field,
                prompt=prompt_field,
                completion=completion_field,
                messages=messages_field,
                layout=layout,
                special=special_tokens,
            )
            text = data.Source(path=source, fields=fields, on_bad=on_bad).recognised()
            words = _byte_pairs(tokenizer, vocabulary, text.pieces)
            dataset = _prepare_text(
                text, out, words, eval_fraction, validation=validation, request=request
            )
        else:
            if kind is SampleKind.LABELLED_TEXT:
                read = _labelled_text(source, tokenizer, vocabulary, sequence=sequence)
            else:
                read = _pictures(samples=samples, size=size)
            dataset = data.prepare_labelled(
                read(source),
                out,
                validation=None if validation is None else read(validation),
                eval_fraction=eval_fraction,
                request=request,
            )
    console.print(f"{dataset.source}: {_summary(dataset)} -> {out}")
    return 0


def _labelled_text(
    source: Path | None, tokenizer: Path | None, vocabulary: int | None, *, sequence: int
) -> Callable[[Path | None], data.Labelled]:
    """Return what reads labelled lines, with a tokenizer that is given or trained on the source."""
    if source is None:
        raise ConfigError("`--source` must be a file of labelled lines; it is missing")
    texts = lambda: (line for _, line in data.labelled_lines(source))  # noqa: E731
    words = _byte_pairs(tokenizer, vocabulary, texts) or data.Bytes()
    return lambda path: data.read_labelled_text(path or source, tokenizer=words, sequence=sequence)


def _pictures(*, samples: int, size: int) -> Callable[[Path | None], data.Labelled]:
    """Return what reads the pictures of a folder, or draws them without one."""
    return lambda path: (
        data.draw_glyphs(num_samples=samples, size=size)
        if path is None
        else data.read_pictures(path, size=size)
    )


def _prepare_text(
    text: data.Source,
    out: Path,
    byte_pairs: data.BytePairs | None,
    eval_fraction: float,
    *,
    validation: Path | None,
    request: Mapping[str, str],
) -> data.Dataset:
    what = "preparing"
    with showing_progress(what) as display:
        return data.prepare(
            text,
            out,
            validation=None if validation is None else data.Source(path=validation),
            tokenizer=byte_pairs,
            eval_fraction=eval_fraction,
            request=request,
            report=lambda number: display.update(Progress(what=what, detail=f"{number:,} tokens")),
        )


def _byte_pairs(
    tokenizer: Path | None, vocabulary: int | None, texts: Callable[[], Iterator[str]]
) -> data.BytePairs | None:
    """Return the tokenizer that is given, or trained; None for that of bytes."""
    if tokenizer is not None:
        return data.load_byte_pairs(tokenizer)
    if vocabulary is not None:
        return data.train_byte_pairs(texts(), vocabulary=vocabulary)
    return None


def _summary(dataset: data.Dataset) -> str:
    unit = "tokens" if dataset.labels is None else "samples"
    counts = f"{len(dataset.train):,} {unit} to train on, {len(dataset.eval):,} held out"
    classes = "" if dataset.labels is None else f", {len(dataset.labels.classes)} classes"
    shape = "" if dataset.labels is None else f" of shape {list(dataset.train.shape[1:])}"
    return f"{counts}{classes}{shape}, vocabulary {dataset.vocabulary:,}"
