"""What stands beside `tokenizer.json`: the names of special tokens, and more added tokens.

::

    tokenizer.json ─► engine ◄─────────── added tokens ───────── tokenizer_config.json
                        │                                        special_tokens_map.json
                        ▼                                        added_tokens.json
                  ids of a text        begin, end of text  ◄──── generation_config.json

The rules are those of `AutoTokenizer` of transformers 5, whose `tokenization_utils_base.py` and
`tokenization_utils_tokenizers.py` are the source; files that nobody of them reads are not read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import parse_json

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

TOKENIZER: Final = "tokenizer.json"
CONFIG: Final = "tokenizer_config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
ADDED_TOKENS: Final = "added_tokens.json"
GENERATION: Final = "generation_config.json"
DEFINING: Final = (TOKENIZER, CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
"""The files on which the tokens of a text depend."""
_NAMED: Final = tuple(
    f"{name}_token" for name in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
)
_MOST_TOKENS: Final = 2**32
_EXTRA: Final = ("extra_special_tokens", "additional_special_tokens")
_FLAGS: Final = ("lstrip", "rstrip", "single_word", "normalized", "special")
# The names that the classes of transformers have where a file states none.
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        **{f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask")}
    },
    "Qwen2Tokenizer": {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    "GPT2Tokenizer": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
}


@dataclass(frozen=True, slots=True)
class _Definition:
    added_tokens: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """The special tokens of a tokenizer by their names, and what its files say about them.

    `tokens` are its added tokens, by id; `extra` are special without a name; `kind` is the class of
    transformers that reads it, empty for the one that uses a `tokenizer.json` as it is.
    """

    kind: str = ""
    named: Mapping[str, "AddedToken"] = field(default_factory=dict)
    tokens: Mapping[int, "AddedToken"] = field(default_factory=dict)
    extra: tuple["AddedToken", ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The names of special tokens and their texts, as a chat template has them."""
        return {name: self.named[name].content for name in _NAMED if name in self.named}


def read_config(files: Mapping[str, bytes]) -> TokenizerConfig:
    """Read the files beside a `tokenizer.json`, those that there are.

    Raises:
        DataError: one is no JSON, or has a token that is none.
    """
    fields = dict(_json(files, CONFIG))
    tokens: dict[int, AddedToken] = {}
    if isinstance(fields.get("added_tokens_decoder"), Mapping):
        for number, token in fields["added_tokens_decoder"].items():
            tokens[_id(number, file=CONFIG)] = _token(token, name="added_tokens_decoder")
    else:
        fields |= _json(files, SPECIAL_TOKENS)
        tokens = dict(_older_tokens(files, fields))
    known = {token.content: token for token in tokens.values()}
    extra = next((fields[name] for name in _EXTRA if fields.get(name)), ())
    named = dict(extra) if isinstance(extra, Mapping) else {}
    names = {
        name: value
        for name, value in fields.items()
        if (name in _NAMED or name.endswith("_token")) and isinstance(value, str | Mapping)
    }
    kind = tokenizer_class(fields)
    if kind == "LlamaTokenizer" and b'"ByteLevel"' in files.get(TOKENIZER, b""):
        kind = ""  # the class of transformers builds a pipeline of another kind, and is not taken
    defaults = _DEFAULTS.get(kind, {})
    missing = {name: text for name, text in defaults.items() if name not in fields}
    named = {
        name: known.get(token.content, token)
        for name, value in (missing | names | named).items()
        if (token := _token(value, name=name, special=True))
    }
    # The order in which those without an id get one.
    named = {name: named[name] for name in (*_NAMED, *named) if name in named}
    listed = () if isinstance(extra, Mapping) else tuple(extra)
    return TokenizerConfig(
        kind=kind,
        named=named,
        tokens=tokens,
        extra=tuple(_token(value, name=_EXTRA[0], special=True) for value in listed),
        fields=fields,
    )


def tokenizer_class(fields: Mapping[str, Any]) -> str:
    """Return the class that a `tokenizer_config.json` names, without the ending of fast ones."""
    return str(fields.get("tokenizer_class") or "").removesuffix("Fast")


def configure(engine: "Tokenizer", config: TokenizerConfig) -> None:
    """Add to an engine the tokens of its files.

    Its post-processor stays: `add_bos_token` and `add_eos_token` are for other files. The class of
    transformers for Llama builds its own normalization, that for GPT-2 its own prefix space.
    """
    if config.kind == "LlamaTokenizer":
        _as_llama(engine, config)
    if config.kind == "GPT2Tokenizer":
        _as_gpt2(engine, config)
    there = engine.get_added_tokens_decoder().values()
    reprs, contents = {repr(token) for token in there}, {token.content for token in there}
    new = [config.tokens[number] for number in sorted(config.tokens)]
    new = [token for token in new if repr(token) not in reprs]
    contents |= {token.content for token in new}
    more = (*config.named.values(), *config.extra)
    engine.add_tokens([*new, *(token for token in more if token.content not in contents)])
    engine.encode_special_tokens = config.fields.get("split_special_tokens") is True


def ends_of(files: Mapping[str, bytes]) -> tuple[int, ...]:
    """Return the ids of the ends of text that a `generation_config.json` lists.

    Raises:
        DataError: one is no number of a token.
    """
    stated = _json(files, GENERATION).get("eos_token_id")
    if stated is None:
        return ()
    ends = stated if isinstance(stated, list) else [stated]
    for end in ends:
        if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < _MOST_TOKENS:
            raise DataError(
                f"`eos_token_id` in `{GENERATION}` must be the number of a token, or a list of "
                f"them, not {end!r:.60}; correct it"
            )
    return tuple(ends)


def _as_llama(engine: "Tokenizer", config: TokenizerConfig) -> None:
    from tokenizers import decoders, models, pre_tokenizers

    if not isinstance(engine.model, models.BPE):
        return
    prefix = config.fields.get("add_prefix_space")
    scheme = "always" if config.fields.get("legacy", False) else "first"
    scheme = scheme if prefix or prefix is None else "never"
    engine.normalizer = None  # pyright: ignore[reportAttributeAccessIssue]
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    parts += [] if scheme == "never" else [decoders.Strip(content=" ", left=1)]
    engine.decoder = decoders.Sequence(parts)
    engine.model.fuse_unk, engine.model.byte_fallback = True, True
    engine.model.unk_token = None


def _as_gpt2(engine: "Tokenizer", config: TokenizerConfig) -> None:
    from tokenizers import pre_tokenizers

    before = engine.pre_tokenizer
    if isinstance(before, pre_tokenizers.ByteLevel):
        before.add_prefix_space = config.fields.get("add_prefix_space") is True
        engine.pre_tokenizer = before


def _older_tokens(
    files: Mapping[str, bytes], fields: Mapping[str, Any]
) -> Iterator[tuple[int, "AddedToken"]]:
    """Yield the tokens of `added_tokens.json`, then those of `tokenizer.json`, by id."""
    from tokenizers import AddedToken

    special = {_content(fields[name]) for name in _NAMED if fields.get(name)}
    for content, number in _json(files, ADDED_TOKENS).items():
        is_special = content in special
        token = AddedToken(content, normalized=not is_special, special=is_special)
        yield _id(number, file=ADDED_TOKENS), token
    if TOKENIZER in files:
        for token in parse_json(files[TOKENIZER], _Definition).added_tokens:
            yield _id(token.get("id"), file=TOKENIZER), _token(token, name="added_tokens")


def _token(value: Any, *, name: str, special: bool = False) -> "AddedToken":
    from tokenizers import AddedToken

    content = _content(value)
    if not content:
        raise DataError(
            f"`{name}` of {CONFIG} must be a token, a text or an object with `content`, not "
            f"{value!r:.60}; correct it"
        )
    if isinstance(value, str):
        return AddedToken(content, special=special)
    flags = {flag: value[flag] for flag in _FLAGS if isinstance(value.get(flag), bool)}
    return AddedToken(content, **({"special": True} if special else {}) | flags)


def _content(value: Any) -> str:
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else ""


def _id(number: Any, *, file: str) -> int:
    if str(number).isdecimal():
        return int(number)
    raise DataError(f"`{file}` must give tokens by number, not {number!r:.60}; correct it")


def _json(files: Mapping[str, bytes], name: str) -> Mapping[str, Any]:
    if name not in files:
        return {}
    try:
        return parse_json(files[name], dict[str, Any])
    except ValueError as error:
        raise DataError(f"`{name}` must be an object of JSON: {error}; correct it") from None
