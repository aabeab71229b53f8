"""Sample text from a checkpoint."""

from pathlib import Path


def sample_text(
    folder: Path,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Return the prompt with its continuation by the model of the checkpoint in `folder`.

    Products have the precision of the run, `run.matmul_precision`.
    """
    import jax
    import numpy as np

    from jaxpipe.config import model_from, saved_config
    from jaxpipe.errors import ConfigError
    from jaxpipe.runtime.checkpoint import open_checkpoint
    from jaxpipe.runtime.sampling import Sampling, continuation

    try:
        sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    checkpoint = open_checkpoint(folder)
    model, params, tokenizer = model_from(checkpoint)
    encoded = np.asarray(tokenizer.encode(prompt), np.int64)
    if not len(encoded):
        raise ConfigError("`--prompt` must hold at least one token; it is empty")
    precision = saved_config(checkpoint).run.matmul_precision
    with jax.default_matmul_precision(precision.jax_name):  # all of it: tokens come one by one
        added = list(continuation(model, params, encoded, num_tokens=tokens, sampling=sampling))
    return prompt + tokenizer.decode(np.array(added, np.int64))
