"""`jaxpipe data prepare`: text to a dataset."""

from pathlib import Path


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
    """Turn text into token files that `jaxpipe train` maps into memory.

    Tokens are bytes, unless a tokenizer or the size of a vocabulary is given.

    Args:
        out: the folder to write.
        source: a text file, a .jsonl file, or a folder of such; without it, the English manual
            that comes with Python.
        field: where the text is in each JSON line.
        tokenizer: a tokenizer.json to use.
        vocabulary: train byte pairs, with so many tokens, on the source.
        eval_fraction: how much is held out.
        if_missing: do nothing if the folder holds a dataset already.
    """
    from jaxpipe.errors import ConfigError
    from jaxpipe.run.console import console, counter
    from jaxpipe.runtime import data

    if if_missing and (out / "dataset.json").exists():
        return 0
    if tokenizer is not None and vocabulary is not None:
        raise ConfigError(
            f"`--tokenizer` brings its own vocabulary: leave out `--vocabulary {vocabulary}`"
        )
    text = data.Source(path=source, field=field)
    with counter("tokens") as report:
        words = None
        if tokenizer is not None:
            words = data.load_byte_pairs(tokenizer)
        elif vocabulary is not None:
            words = data.train_byte_pairs(text.pieces(), vocabulary=vocabulary)
        dataset = data.prepare(
            text, out, tokenizer=words, eval_fraction=eval_fraction, report=report
        )
    console.print(
        f"{dataset.source}: {len(dataset.train):,} tokens to train on, {len(dataset.eval):,} held "
        f"out, vocabulary {dataset.vocabulary:,} -> {out}"
    )
    return 0
