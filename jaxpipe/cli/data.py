"""`jaxpipe data prepare`: makes a dataset from text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FLAGS = {"folder": "--out", "source": "--source", "tokenizer": "--tokenizer"}
_FLAGS |= {"vocabulary": "--vocabulary", "eval_fraction": "--eval-fraction", "field": "--field"}


@contextmanager
def _named_as_flags() -> Iterator[None]:
    """Let errors name the options of the command in place of Python's parameters."""
    from jaxpipe.errors import DataError

    try:
        yield
    except DataError as error:
        words = str(error)
        for name, flag in _FLAGS.items():
            words = words.replace(f"`{name}`", f"`{flag}`")
        raise DataError(words) from error


def prepare(
    *,
    out: Path,
    source: Path | None = None,
    field: str = "text",
    tokenizer: Path | None = None,
    vocabulary: int | None = None,
    eval_fraction: float = 0.1,
    if_missing: bool = False,
) -> int:
    """Tokenise text into files that `jaxpipe train` maps into memory.

    Tokens are bytes by default.

    Args:
        out: the folder to write.
        source: a text file, a .jsonl file, or a folder of them; by default the English manual that
            comes with Python.
        field: the field of each JSON line with the text.
        tokenizer: a tokenizer.json to use.
        vocabulary: train a byte-pair tokenizer of this size on the source.
        eval_fraction: the fraction that is held out for evaluation.
        if_missing: do nothing if the folder holds a dataset already.
    """
    from jaxpipe.errors import ConfigError
    from jaxpipe.run.console import console
    from jaxpipe.run.progress import Progress, showing_progress
    from jaxpipe.runtime import data

    if if_missing and (out / "dataset.json").exists():  # which is written last
        return 0
    if tokenizer is not None and vocabulary is not None:
        raise ConfigError(
            f"`--tokenizer` brings its own vocabulary: leave out `--vocabulary {vocabulary}`"
        )
    text = data.Source(path=source, field=field)
    what = "preparing"
    with showing_progress(what) as display, _named_as_flags():
        byte_pairs = None
        if tokenizer is not None:
            byte_pairs = data.load_byte_pairs(tokenizer)
        elif vocabulary is not None:
            byte_pairs = data.train_byte_pairs(text.pieces(), vocabulary=vocabulary)
        dataset = data.prepare(
            text,
            out,
            tokenizer=byte_pairs,
            eval_fraction=eval_fraction,
            report=lambda number: display.update(Progress(what=what, detail=f"{number:,} tokens")),
        )
    console.print(
        f"{dataset.source}: {len(dataset.train):,} tokens to train on, {len(dataset.eval):,} held "
        f"out, vocabulary {dataset.vocabulary:,} -> {out}"
    )
    return 0
