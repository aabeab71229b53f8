"""The chat template of a tokenizer: a conversation as the text that its model was trained on.

The environment is that of transformers (`utils/chat_template_utils.py`): a sandbox of jinja2 that
changes nothing outside, without line feeds and blanks around blocks, with `raise_exception`,
`tojson`, `strftime_now`, loop controls, and `{% generation %}` around what a model says.

A rendering has `TIME_S` seconds: each turn of a loop and each call looks at the clock, and products
and powers are bounded.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.dataset.tokenizer_config import TokenizerConfig

if TYPE_CHECKING:
    from jinja2 import Environment, Template

Message = Mapping[str, Any]
DEFAULT, _TOOLS = "default", "tool_use"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATES: Final = "additional_chat_templates"
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
TIME_S: Final = 10.0
"""Real templates take milliseconds; one with nested loops could take for ever."""
_MOST_LETTERS: Final = 2**24
_MOST_EXPONENT: Final = 64
# Of tokenizers without a template: the name of a role, and what it says.
PLAIN: Final = (
    "{% for message in messages %}{{ message.role }}:\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}\n\n"
    "{% endgeneration %}{% else %}{{ message.content }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text, and the characters between marks of generation."""

    text: str
    generated: tuple[range, ...] = ()


@dataclass(frozen=True)
class ChatTemplate:
    """The templates of a tokenizer by name, and the texts of its special tokens."""

    sources: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def source(self) -> str:
        """The text of all templates."""
        return "\n".join(self.sources.values())

    @cached_property
    def marks_generation(self) -> bool:
        """Whether the templates mark what a model says."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.source) is not None

    @cached_property
    def literals(self) -> str:
        """The texts that the templates write themselves, with zeros in between."""
        from jinja2 import nodes

        trees = [_environment().parse(source) for source in self.sources.values()]
        texts = {node.data for tree in trees for node in tree.find_all(nodes.TemplateData)}
        constants = (node.value for tree in trees for node in tree.find_all(nodes.Const))
        texts |= {value for value in constants if isinstance(value, str)}
        return "\0".join(sorted(texts))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompts: bool = False,
        **options: Any,
    ) -> Rendered:
        """Return a conversation as text; with `prompts`, the next words are those of the model.

        Raises:
            DataError: the template refuses it, or is wrong.
        """
        name = _TOOLS if tools and _TOOLS in self.sources else DEFAULT
        try:
            return _rendered(
                _compiled(self.sources[name]),
                messages=[_with_reasoning(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=prompts,
                **{**self.variables, **options},
            )
        except Exception as error:  # whatever a stranger's template does wrong
            raise DataError(
                f"`chat_template` must render the conversation: {error!s:.200}; correct the "
                "record, or the template"
            ) from None


def chat_template_of(files: Mapping[str, bytes], config: TokenizerConfig) -> ChatTemplate | None:
    """Return the chat templates among the files of a tokenizer; files of their own come first.

    Raises:
        DataError: none is the default one, or one is no text.
    """
    texts = {
        _name(name): _decoded(name, content)
        for name, content in files.items()
        if name == TEMPLATE or name.startswith(f"{TEMPLATES}/")
    }
    sources = texts or _of_config(config.fields.get("chat_template"))
    if not sources:
        return None
    if DEFAULT not in sources:
        raise DataError(
            f"`chat_template` must have a template named {DEFAULT}, not {', '.join(sources):.100}; "
            "rename one"
        )
    return ChatTemplate(sources, config.variables)


def _decoded(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"`{name}` must be UTF-8, and byte {error.start} is not; correct it"
        ) from None


def _of_config(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        return {str(part["name"]): str(part["template"]) for part in value}
    return {}


def _name(file: str) -> str:
    return (
        DEFAULT if file == TEMPLATE else file.removeprefix(f"{TEMPLATES}/").removesuffix(".jinja")
    )


def _with_reasoning(message: Message) -> dict[str, Any]:
    """Return a message whose reasoning has all names that templates know."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _rendered(template: "Template", **variables: Any) -> Rendered:
    blocks: list[str] = []
    generated: list[range] = []

    def mark(text: str) -> None:
        begin = sum(map(len, blocks))
        generated.append(range(begin, begin + len(text)))

    environment: Any = template.environment
    environment.mark = mark
    environment.end_s = time.monotonic() + TIME_S
    # One block after the other: a mark counts the characters before it.
    for block in template.generate(**variables):
        blocks.append(block)  # noqa: PERF402  `mark` reads them meanwhile
    return Rendered("".join(blocks), tuple(generated))


@lru_cache(maxsize=64)
def _compiled(source: str) -> "Template":
    from jinja2 import nodes

    environment = _environment()
    tree = environment.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "_in_time", [], [], None, None)
    return environment.from_string(tree)


def _bounded(environment: Any) -> Any:
    """Return a sandbox of jinja2 whose loops, calls, products and powers come to an end."""
    import jinja2

    class Bounded(environment):
        end_s = float("inf")
        intercepted_binops = frozenset(("*", "**"))

        def check_time(self) -> None:
            if time.monotonic() > self.end_s:
                raise jinja2.exceptions.SecurityError(
                    f"it takes longer than {TIME_S:.0f} s; remove nested loops"
                )

        def call(self, *arguments: Any, **options: Any) -> Any:
            self.check_time()
            return super().call(*arguments, **options)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            for text, number in ((left, right), (right, left)):
                if operator == "*" and hasattr(text, "__len__") and isinstance(number, int):
                    _check_most(len(text) * number, _MOST_LETTERS, "the length of a product")
            if operator == "**":
                _check_most(right, _MOST_EXPONENT, "an exponent")
            return super().call_binop(context, operator, left, right)

    return Bounded


def _check_most(value: Any, most: int, name: str) -> None:
    import jinja2

    if value > most:
        raise jinja2.exceptions.SecurityError(f"{name} must be at most {most:,}")


def _environment() -> "Environment":
    import jinja2
    from jinja2 import ext, nodes, sandbox

    class Generation(ext.Extension):
        tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Callable[[], str]) -> str:
            text = caller()
            environment: Any = self.environment
            environment.mark(text)
            return text

    class Namespace(jinja2.utils.Namespace):
        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace has no {name!r}")
            super().__setitem__(name, value)

    environment = _bounded(sandbox.ImmutableSandboxedEnvironment)(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )

    def in_time(values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            environment.check_time()
            yield value

    environment.filters |= {"tojson": _to_json, "_in_time": in_time}
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": Namespace,
    }
    return environment


def _raise(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    known = {
        name: options[name] for name in ("indent", "separators", "sort_keys") if name in options
    }
    return json.dumps(value, ensure_ascii=ensure_ascii, **known)
