"""`jaxpipe generate`: text from a checkpoint."""

from pathlib import Path
from typing import Annotated

import tyro


def generate(
    run: tyro.conf.Positional[Path],
    *,
    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT")],
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> int:
    """Continue a text with the model of a run's newest checkpoint.

    Args:
        run: the folder of a run.
        prompt: the text to continue.
        tokens: how many tokens to add.
        temperature: 0 takes the likeliest token each time; 1 draws as the model says.
        top_k: draw among so many of the likeliest.
        seed: another seed, another text.
    """
    from jaxpipe.run.console import console
    from jaxpipe.runtime.checkpoint import latest

    text = sample_text(
        latest(run), prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    console.print(text, markup=False)
    return 0


def sample_text(
    folder: Path,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Return the prompt and how the model of the checkpoint in `folder` continues it."""
    import numpy as np

    from jaxpipe.config import model_from
    from jaxpipe.errors import ConfigError
    from jaxpipe.runtime.checkpoint import open_checkpoint
    from jaxpipe.runtime.generate import Sampling, continuation

    try:
        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    model, params, tokenizer = model_from(open_checkpoint(folder))
    words = tokenizer.encode(prompt)
    if not len(words):
        raise ConfigError("`--prompt` must hold at least one token; it is empty")
    added = list(continuation(model, params, words, num_tokens=tokens, sampling=sampling))
    return prompt + tokenizer.decode(np.array(added, np.int64))
