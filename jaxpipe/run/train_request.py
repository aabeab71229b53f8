"""What `jaxpipe train` is asked for, also as the words for the processes that it starts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import msgspec

from jaxpipe.errors import ConfigError
from jaxpipe.run.terminal.console import next_line, set_words
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks
from jaxpipe.runtime.run_config import AllowedChange

ENTRY = "jaxpipe.cli.train"
"""The module that a launcher or a supervisor starts in a process, with the words of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What `jaxpipe train` is asked for.

    `plan` is the plan file of a launcher that has resolved the plan; `hooks` names the function
    that makes the hooks of a rank, as `MODULE:FUNCTION`. `lock` is the token of the lock that the
    supervisor of a run over hosts holds. `is_supervised` says whether `jaxpipe run` has started
    this attempt, `plan_bytes` how many bytes of `plan.file` it sends to the input of rank 0.
    `allow_changed` is what may differ from the checkpoint of a run that resumes.
    """

    config: Path
    settings: tuple[str, ...] = ()
    resume: bool = False
    plan: Path | None = None
    hooks: str | None = None
    lock: str | None = None
    is_supervised: bool = False
    plan_bytes: int = 0
    allow_changed: tuple[AllowedChange, ...] = ()

    @property
    def words(self) -> list[str]:
        """The words with which `ENTRY` starts an attempt, or a rank of it."""
        fields = msgspec.to_builtins(replace(self, config=Path()), enc_hook=str)
        return [str(self.config), json.dumps({**fields, "config": ""})]

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "TrainRequest":
        """Return the request of these words.

        >>> request = TrainRequest(config=Path("my.toml"), settings=("run.seed=1",), resume=True)
        >>> TrainRequest.of_words(request.words) == request
        True
        """
        config, fields = words
        request = msgspec.json.decode(fields, type=cls, dec_hook=lambda _, text: Path(text))
        return replace(request, config=Path(config))

    def resume_line(self, settings: Sequence[str] = ()) -> str:
        """Return the line that names the command with which the run continues, with more settings.

        >>> TrainRequest(config=Path("my.toml"), settings=("run.folder=a b",)).resume_line()
        "next: jaxpipe train my.toml --set 'run.folder=a b' --resume"
        """
        if not self.is_supervised:
            longer = replace(self, settings=(*self.settings, *settings))
            return next_line(*longer.arguments, "--resume", *self._allowed)
        over = [] if self.lock is None else ["--hosts"]
        changes = set_words((*self.settings, *settings))
        return next_line("run", self.config, *over, *changes, "--resume", *self._allowed)

    @property
    def _allowed(self) -> list[str]:
        return ["--allow-changed", *self.allow_changed] if self.allow_changed else []

    @property
    def arguments(self) -> list[str]:
        """The arguments of `jaxpipe` for this request, without `--resume`."""
        return ["train", str(self.config), *set_words(self.settings)]


def load_hooks(reference: str | None, config: Path, *, rank: int) -> Hooks:
    """Return the hooks of a rank: what the function `MODULE:FUNCTION` makes for it.

    Raises:
        ConfigError: there is no such function.
    """
    if reference is None:
        return NO_HOOKS
    module, _, name = reference.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"`--hooks` names a function as MODULE:FUNCTION, is {reference!r:.80}: {error}"
        ) from error
    return make(config, rank=rank)
