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
    from jaxpipe.run.sample import sample_text
    from jaxpipe.runtime.checkpoint import latest

    text = sample_text(
        latest(run), prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    console.print(text, markup=False)
    return 0
