"""Text that a checkpoint continues: whole characters, streamed, up to a stop string.

::

    prompts ─► tokens.generated ─► a token of each text ─► Continuation ─► text to show
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import numpy as np
from jaxtyping import Int64

from jaxpipe.config import Config, model_from, saved_config
from jaxpipe.errors import ConfigError
from jaxpipe.inference import tokens as drawing
from jaxpipe.inference.sampling import Sampling
from jaxpipe.runtime.checkpoint import open_checkpoint
from jaxpipe.runtime.data import Conversation, SpecialTokens, Tokenizer, chat_form
from jaxpipe.runtime.storage.object_folder import Folder

logger = logging.getLogger(__name__)


def _nothing(_: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """That prompts are messages of a user, and what the system says before."""

    system: str | None = None


def sample_text(
    folder: Folder,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Return the prompt with its continuation by the model that a run has trained.

    It sees as many tokens as the samples of the run have, and so no position that was not trained.
    """
    (text,) = sample_texts(
        folder,
        [prompt],
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        as_trained=True,
    )
    return text


def sample_texts(  # noqa: PLR0913 - the options of `jaxpipe generate`
    folder: Folder,
    prompts: Sequence[str | Conversation],
    *,
    tokens: int,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stops: Sequence[str] = (),
    chat: Chat | None = None,
    show: Callable[[str], object] = _nothing,
    as_trained: bool = False,
) -> list[str]:
    """Return each prompt with its continuation, up to the first of the strings `stops`.

    A continuation ends before the tokenizer's end of text. With `chat`, a prompt is a message, and
    the answer is returned alone; so is the answer to a conversation. Text number n is drawn with
    the seed `seed` + n. `show` is called with the text that each token adds to the first prompt.
    Products have the precision of the run, `run.matmul_precision`. With `as_trained` the model
    sees no more tokens than the samples of the run have, `train.sequence`.

    Raises:
        ConfigError: a prompt or a stop string is empty, or how tokens are drawn is none.
        CheckpointError: a tensor is missing or corrupt.
    """
    try:
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not all(stops):
        raise ConfigError("`--stop` must hold at least one character; it is empty")
    checkpoint = open_checkpoint(folder)
    model, params, tokenizer = model_from(checkpoint)
    encoded = _encoded(tokenizer, prompts, chat)
    config = saved_config(checkpoint)
    longest = max(map(len, encoded)) + tokens
    window = _window(config, longest=longest, as_trained=as_trained)
    texts = [Continuation(tokenizer, stops, context=tuple(tokens)) for tokens in encoded]
    precision = config.run.matmul_precision
    with jax.default_matmul_precision(precision.jax_name):  # all of it: tokens come one by one
        drawn = partial(drawing.generated, num_tokens=tokens, sampling=sampling, window=window)
        for step in drawn(model, params, encoded):
            new = [text.add(token) for text, token in zip(texts, step, strict=True)]
            show(new[0])
            if all(text.is_stopped for text in texts):
                break
    show(texts[0].rest())
    for text in texts:
        text.rest()
    begins = (prompt if chat is None and isinstance(prompt, str) else "" for prompt in prompts)
    return [begin + text.shown for begin, text in zip(begins, texts, strict=True)]


def _check_text(flag: str, text: str) -> None:
    """Check that a text can be written: bytes of a command that are no UTF-8 are no characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"`{flag}` must be text in UTF-8, and character {error.start + 1} of it is not; give "
            "it in UTF-8"
        ) from None


def prompt_tokens(
    tokenizer: Tokenizer, prompt: str | Conversation, *, chat: Chat | None = None
) -> Int64[np.ndarray, " tokens"]:
    """Return the tokens of a prompt, with those that its tokenizer puts around a text.

    With `chat`, it is a message of the user, and a role that it spells is no role. A conversation
    is followed by the prompt for an answer.

    Raises:
        ConfigError: the prompt is empty or no text, or the tokenizer has no chat template.
    """
    if not prompt:
        raise ConfigError("`--prompt` must hold at least one character; it is empty")
    if isinstance(prompt, str):
        _check_text("--prompt", prompt)
    if chat is not None and chat.system:
        _check_text("--system", chat.system)
    if chat is None and isinstance(prompt, str):
        frame = tokenizer.frame
        return np.array([*frame.begin, *tokenizer.encode(prompt), *frame.closing], np.int64)
    if getattr(tokenizer, "template", None) is None:
        raise ConfigError(
            "`--chat` needs a tokenizer with a chat template, and that of the run has none; leave "
            "it out"
        )
    form = chat_form(tokenizer, SpecialTokens.OWN)
    asked = _asked(prompt, chat) if isinstance(prompt, str) else prompt
    conversation = replace(asked, learned=(False,) * len(asked.messages))
    pieces = form.rendered(conversation, prompts=True)
    return tokenizer.encode_records([pieces])[0].tokens.astype(np.int64)


def _asked(prompt: str, chat: Chat | None) -> Conversation:
    turns = [("system", None if chat is None else chat.system), ("user", prompt)]
    messages = tuple({"role": role, "content": text} for role, text in turns if text is not None)
    return Conversation(messages=messages, learned=(False,) * len(messages))


def _encoded(
    tokenizer: Tokenizer, prompts: Sequence[str | Conversation], chat: Chat | None
) -> list[Int64[np.ndarray, " tokens"]]:
    """Return the tokens of each prompt.

    Raises:
        ConfigError: one has none.
    """
    encoded = [prompt_tokens(tokenizer, prompt, chat=chat) for prompt in prompts]
    if not all(map(len, encoded)):
        raise ConfigError("`--prompt` must hold at least one token; it is empty")
    return encoded


def _window(config: Config, *, longest: int, as_trained: bool) -> int | None:
    """Return how many tokens the model sees, None for as many as it can.

    Warn of positions that the run has not trained; an import may have before it.
    """
    trained, known = config.train.sequence, config.model.sequence
    if as_trained:
        return trained
    if trained is not None and trained < min(longest, known):
        logger.warning(
            "`train.sequence` (%d) of the run is less than the %d tokens of a text: the run has "
            "not trained the positions after it; give fewer `--tokens`, or train longer samples",
            trained,
            longest,
        )
    return None


_CONTEXT = 4
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer makes of the first bytes of a character."""


@dataclass(slots=True)
class Continuation:
    """A text that grows by tokens, and ends before the first of the `stops` in it.

    An end of text ends it as well. The text of a token depends on the tokens before it, the last
    of which are the `context`.

    >>> from jaxpipe.runtime.data import Bytes
    >>> text = Continuation(Bytes(), stops=("end",))
    >>> [text.add(token) for token in b"men. end of"], text.is_stopped
    (['m', '', '', 'en.', ' ', '', '', '', '', '', ''], True)
    >>> text.rest(), text.shown
    ('', 'men. ')
    """

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    context: Sequence[int] = ()
    is_stopped: bool = False
    shown: str = ""
    _tokens: list[int] = field(default_factory=list)

    def add(self, token: int) -> str:
        """Return the text that a token completes: what no later token can change or stop."""
        if self.is_stopped:
            return ""
        if token in self.tokenizer.frame.ends:
            rest = self.rest()
            self.is_stopped = True
            return rest
        self._tokens.append(token)
        text = self._text()
        positions = [position for stop in self.stops if (position := text.find(stop)) >= 0]
        if positions:
            self.is_stopped = True
            return self._show(text[: min(positions)])
        text = text.rstrip(_UNFINISHED)
        return self._show(text[: len(text) - self._held(text)])

    def rest(self) -> str:
        """Return what was held back, once there are no more tokens."""
        return "" if self.is_stopped else self._show(self._text())

    def _text(self) -> str:
        # A tokenizer that begins a text without its first blank would lose one here.
        before = self.context[-_CONTEXT:]
        text = self.tokenizer.decode(np.array([*before, *self._tokens], np.int64))
        return text[len(self.tokenizer.decode(np.array(before, np.int64))) :]

    def _show(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.shown += new
        return new

    def _held(self, text: str) -> int:
        """Return the length of the longest end of a text with which a stop string begins."""
        return max(
            (
                length
                for stop in self.stops
                for length in range(1, len(stop))
                if text.endswith(stop[:length])
            ),
            default=0,
        )
