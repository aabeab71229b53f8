"""Sample text from a checkpoint."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxpipe.runtime.storage.object_folder import Folder


def _nothing(_: str) -> None:
    """Show nothing."""


def sample_text(
    folder: "Folder",
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Return the prompt with its continuation by the model of the checkpoint in `folder`."""
    (text,) = sample_texts(
        folder, [prompt], tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    return text


def sample_texts(  # noqa: PLR0913 - the options of `jaxpipe generate`
    folder: "Folder",
    prompts: Sequence[str],
    *,
    tokens: int,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stops: Sequence[str] = (),
    show: Callable[[str], object] = _nothing,
) -> list[str]:
    """Return each prompt with its continuation, up to the first of the strings `stops`.

    Text number n is drawn with the seed `seed` + n. `show` is called with the text that each token
    adds to the first prompt. Products have the precision of the run, `run.matmul_precision`.

    Raises:
        ConfigError: a prompt or a stop string is empty, or how tokens are drawn is none.
        CheckpointError: a tensor is missing or corrupt.
    """
    import jax
    import numpy as np

    from jaxpipe.config import model_from, saved_config
    from jaxpipe.errors import ConfigError
    from jaxpipe.generate import Continuation
    from jaxpipe.generate import tokens as drawing
    from jaxpipe.runtime.checkpoint import open_checkpoint
    from jaxpipe.runtime.sampling import Sampling

    try:
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not all(stops):
        raise ConfigError("`--stop` must hold at least one character; it is empty")
    checkpoint = open_checkpoint(folder)
    model, params, tokenizer = model_from(checkpoint)
    encoded = [np.asarray(tokenizer.encode(prompt), np.int64) for prompt in prompts]
    if not all(map(len, encoded)):
        raise ConfigError("`--prompt` must hold at least one token; it is empty")
    texts = [Continuation(tokenizer, stops) for _ in prompts]
    precision = saved_config(checkpoint).run.matmul_precision
    with jax.default_matmul_precision(precision.jax_name):  # all of it: tokens come one by one
        steps = drawing.generated(model, params, encoded, num_tokens=tokens, sampling=sampling)
        for step in steps:
            new = [text.add(token) for text, token in zip(texts, step, strict=True)]
            show(new[0])
            if all(text.is_stopped for text in texts):
                break
    show(texts[0].rest())
    for text in texts:
        text.rest()
    return [prompt + text.shown for prompt, text in zip(prompts, texts, strict=True)]
