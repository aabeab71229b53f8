"""`jaxpipe generate`: samples text from a checkpoint."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.errors import ConfigError
from jaxpipe.run.terminal.console import console
from jaxpipe.runtime.process.compile_cache import use_compile_cache


def generate(  # noqa: PLR0913 - each is an option
    run: tyro.conf.Positional[Path],
    *,
    prompt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT")] = (),
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT")] = (),
    chat: bool = False,
    system: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    messages: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    seed: int = 0,
) -> int:
    """Continue a text with the newest checkpoint of a run.

    One text is shown as it is drawn. Several are drawn as one batch, and shown at the end; text n,
    counted from 0, is that of `--seed` + n. A text ends where the model writes its end of text.

    Args:
        run: the folder of a run.
        prompt: the text to continue; may be repeated.
        tokens: number of tokens to add.
        temperature: 0 is greedy; 1 samples from the distribution of the model.
        top_k: sample from the k most likely tokens only.
        top_p: sample from the fewest tokens that together have this probability.
        stop: end before this text; may be repeated.
        chat: each prompt is a message of the user, in the chat template of the tokenizer.
        system: a message of the system before that of the user, with `--chat`.
        messages: a JSON file with a conversation, in place of prompts, with `--chat`: a list of
            messages, or an object with `messages` and `tools`. It ends before the answer.
        seed: seed of the sampling.
    """
    _check_prompts(prompt, chat=chat, system=system, messages=messages)
    from jaxpipe.runtime.process.jax_backend import check_platforms  # it loads clusters

    check_platforms(os.environ)
    use_compile_cache(os.environ)

    # They import jax, which then uses the cache.
    from jaxpipe.config import place_in
    from jaxpipe.inference.messages_file import read_messages
    from jaxpipe.inference.sample_texts import Chat, sample_texts
    from jaxpipe.runtime.checkpoint import latest

    prompts = prompt if messages is None else (read_messages(messages),)
    streams = len(prompts) == 1
    begun = False

    def show(text: str) -> None:
        nonlocal begun
        if not streams:
            return
        # The prompt comes with the first token: before it, the checkpoint may be refused.
        shown = text if begun or chat else prompt[0] + text
        begun = True
        console.print(shown, markup=False, end="")

    drawn = sample_texts(
        latest(place_in(run)),
        prompts,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stops=stop,
        chat=Chat(system=system) if chat else None,
        show=show,
    )
    if streams:
        console.print()
        return 0
    for number, text in enumerate(drawn):
        console.rule(f"text {number}", align="left", style="")
        console.print(text, markup=False)
    return 0


def _check_prompts(
    prompt: tuple[str, ...], *, chat: bool, system: str | None, messages: Path | None
) -> None:
    for name, value in (("system", system), ("messages", messages)):
        if value is not None and not chat:
            raise ConfigError(f"`--{name}` needs `--chat`; give both, or neither")
    if messages is not None and (prompt or system is not None):
        other = "--prompt" if prompt else "--system"
        raise ConfigError(f"`--messages` must be without `{other}`; write it into the file")
    if not prompt and messages is None:
        raise ConfigError(
            "`--prompt` is missing; give one or more texts to continue, or `--messages` with a "
            "conversation"
        )
