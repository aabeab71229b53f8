"""A checkpoint as a model of EleutherAI's lm-evaluation-harness, on one device.

It has the public interface of `lm_eval.api.model`, and answers as the harness's own model of
`transformers` (`hf`) does on the exported folder: the same tokens around a text, the same cuts of
texts that are too long, the same stops.

::

    loglikelihood           context, continuation ─► likelihoods
    loglikelihood_rolling   a text, in windows    ─► likelihoods
    generate_until          context, stop strings ─► tokens.generated, greedy unless a task samples
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from jaxpipe.config import model_from
from jaxpipe.errors import ConfigError
from jaxpipe.inference.likelihoods import Continued, likelihoods, width_of
from jaxpipe.inference.sample_texts import Continuation
from jaxpipe.inference.sampling import Sampling
from jaxpipe.inference.tokens import generated
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.data import BytePairs

_ROWS: Final = 8
_MOST_TOKENS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_DEFAULT_TOKENS: Final = 256
_SAMPLING: Final = ("do_sample", "temperature", "top_k", "top_p")


class CheckpointModel(TemplateLM):
    """A checkpoint as a model of the harness."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Restore the model, adapters merged."""
        super().__init__()
        self.model, self.params, self.tokens = model_from(checkpoint)
        self.template = getattr(self.tokens, "template", None)
        self._name = str(checkpoint.folder)

    @property
    def eot_token_id(self) -> int:
        """The end of text."""
        ends = self.tokens.frame.ends
        if not ends:
            raise ConfigError(
                "`tokenizer_config.json` must name an `eos_token`, which tasks put before a text; "
                "add it to the folder of the run"
            )
        return ends[0]

    @property
    def prefix_token_id(self) -> int:
        """What a text follows that follows nothing: the begin of text, or else the end of text."""
        begin = getattr(self.tokens, "begin_of_text", None)
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """The folder of the checkpoint."""
        return self._name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the templates of the tokenizer as one text."""
        return self.template.source if chat_template and self.template is not None else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return messages as the text of the chat template."""
        assert self.template is not None, self._name
        if add_generation_prompt:
            return self.template.render(chat_history, prompts=True).text
        # The last message is of the assistant, and is continued.
        text = self.template.render(chat_history).text
        said = chat_history[-1]["content"].strip()
        return text[: text.rindex(said) + len(said)]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text, with those around it unless it has the first already."""
        tokens, frame = self.tokens.encode(string).tolist(), self.tokens.frame
        if add_special_tokens is None:
            prefix = self.tokens.decode(np.array([self.prefix_token_id]))
            add_special_tokens = not string.startswith(prefix)
        return [*frame.begin, *tokens, *frame.closing] if add_special_tokens else tokens

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool | None = None,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        texts = [Continued(context, continuation) for _, context, continuation in requests]
        answers = likelihoods(self.model, self.params, texts)
        shown = _progress(answers, len(texts), "likelihoods", disable=disable_tqdm)
        by_number: dict[int, tuple[float, bool]] = dict(shown)
        return [by_number[number] for number in range(len(texts))]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, each token after as many others as fit."""
        windows = [
            (number, *make_disjoint_window(window))
            for number, request in enumerate(requests)
            for window in get_rolling_token_windows(
                token_list=self.tok_encode(*request.args),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.model.sequence,
                context_len=1,
            )
        ]
        sums = [0.0] * len(requests)
        answers = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for (number, *_), (log, _) in zip(windows, answers, strict=True):
            sums[number] += log
        return sums

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Return texts that continue contexts, up to the stop strings of their tasks."""
        groups: dict[Generation, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[generation_of(request.args[1])].append(number)
        texts = {
            number: text
            for generation, numbers in groups.items()
            for number, text in _progress(
                self._texts({n: requests[n].args[0] for n in numbers}, generation),
                len(numbers),
                "texts",
                disable=disable_tqdm,
            )
        }
        return [texts[number] for number in range(len(requests))]

    def _texts(
        self, contexts: Mapping[int, str], generation: "Generation"
    ) -> Iterator[tuple[int, str]]:
        """Yield the continuation of each context, the longest first."""
        prompts = {n: self._prompt(context, generation) for n, context in contexts.items()}
        order = sorted(prompts, key=lambda n: -len(prompts[n]))
        for first in range(0, len(order), _ROWS):
            batch = order[first : first + _ROWS]
            new = self._continued([prompts[n] for n in batch], generation)
            yield from zip(batch, new, strict=True)

    def _prompt(self, context: str, generation: "Generation") -> list[int]:
        room = self.model.sequence - generation.num_tokens
        if room < 1:
            raise ConfigError(
                f"`{_MOST_TOKENS[0]}` of a task must be below `model.sequence` "
                f"({self.model.sequence}), not {generation.num_tokens}; set it in the "
                "`generation_kwargs` of its YAML"
            )
        return self.tok_encode(context)[-room:]

    def _continued(self, prompts: Sequence[list[int]], generation: "Generation") -> list[str]:
        texts = [
            Continuation(self.tokens, generation.stops, context=tuple(prompt)) for prompt in prompts
        ]
        unseen = self._unseen(generation.stops)
        room = self.model.sequence - generation.num_tokens + 1
        steps = generated(
            self.model,
            self.params,
            [np.array(prompt, np.int64) for prompt in prompts],
            num_tokens=generation.num_tokens,
            sampling=generation.sampling,
            width=width_of(max(map(len, prompts)), most=room),
        )
        for step in steps:
            for text, token in zip(texts, step, strict=True):
                if token not in unseen:
                    text.add(token)
            if all(text.is_stopped for text in texts):
                break
        for text in texts:
            text.rest()
        return [text.shown for text in texts]

    def _unseen(self, stops: Sequence[str]) -> frozenset[int]:
        """Return the special tokens that a text leaves out: they are no end, and no stop string."""
        if not isinstance(self.tokens, BytePairs):
            return frozenset()
        names = [name for name in self.tokens.special if not any(name in stop for stop in stops)]
        ids = {int(self.tokens.encode(name)[0]) for name in names}
        return frozenset(ids - {*self.tokens.frame.ends})


def _progress(
    results: Iterable[tuple[int, Any]], number: int, name: str, *, disable: bool | None
) -> Iterable[tuple[int, Any]]:
    """Show on a terminal how many results there are."""
    return tqdm(results, total=number, desc=name, disable=disable or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How a task has a text continued."""

    stops: tuple[str, ...]
    num_tokens: int
    sampling: Sampling


def generation_of(fields: Mapping[str, Any]) -> Generation:
    r"""Return what the `generation_kwargs` of a task say; without `do_sample`, tokens are greedy.

    >>> generation_of({"until": "\n", "max_gen_toks": 8}).sampling.temperature
    0.0

    Raises:
        ConfigError: a field is not known, or has no such value.
    """
    if unknown := sorted({*fields} - {"until", *_MOST_TOKENS, *_SAMPLING}):
        raise ConfigError(
            f"`generation_kwargs` of a task must be among until, {', '.join(_MOST_TOKENS)}, "
            f"{', '.join(_SAMPLING)}, not {', '.join(unknown):.100}; leave out the task"
        )
    until = fields.get("until") or ()
    samples = fields.get("do_sample", bool(fields.get("temperature")))
    try:
        sampling = Sampling(
            temperature=float(fields.get("temperature", 1.0)) if samples else 0.0,
            top_k=fields.get("top_k") if samples else None,
            top_p=fields.get("top_p") if samples else None,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`generation_kwargs` of a task: {error}; leave out the task") from error
    given = (fields[name] for name in _MOST_TOKENS if fields.get(name) is not None)
    return Generation(
        stops=tuple(filter(None, (until,) if isinstance(until, str) else until)),
        num_tokens=int(next(given, _DEFAULT_TOKENS)),
        sampling=sampling,
    )
