"""`jaxpipe generate`: samples text from a checkpoint."""

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
    """Continue a text with the newest checkpoint of a run.

    Args:
        run: the folder of a run.
        prompt: the text to continue.
        tokens: number of tokens to add.
        temperature: 0 is greedy; 1 samples from the distribution of the model.
        top_k: sample from the k most likely tokens only.
        seed: seed of the sampling.
    """
    import os

    from jaxpipe.errors import ConfigError
    from jaxpipe.run.console import console
    from jaxpipe.run.sample import sample_text
    from jaxpipe.runtime.checkpoint import latest
    from jaxpipe.runtime.process.compile_cache import use_compile_cache

    if tokens < 0:
        raise ConfigError(f"`--tokens` must not be negative, not {tokens}; give 0 or more")
    use_compile_cache(os.environ)
    text = sample_text(
        latest(run), prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    console.print(text, markup=False)
    return 0
