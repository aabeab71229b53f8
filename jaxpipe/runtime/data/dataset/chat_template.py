"""The chat template of a tokenizer: a conversation as the text that its model was trained on.

The environment is that of transformers (`utils/chat_template_utils.py`): a sandbox of jinja2 that
changes nothing outside, without line feeds and blanks around blocks, with `raise_exception`,
`tojson`, `strftime_now`, loop controls, and `{% generation %}` around what a model says.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
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
        import jinja2

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
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, RecursionError) as error:
            raise DataError(
                f"`chat_template` must render the conversation: {error}; correct the record, or "
                "the template"
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
    # One block after the other: a mark counts the characters before it.
    for block in template.generate(**variables):
        blocks.append(block)  # noqa: PERF402  `mark` reads them meanwhile
    return Rendered("".join(blocks), tuple(generated))


@lru_cache(maxsize=64)
def _compiled(source: str) -> "Template":
    return _environment().from_string(source)


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

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
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
