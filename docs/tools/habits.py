"""Habits of the code that make it harder to read, found in its syntax trees.

    pronouns         a name that stands for a noun is bound: `each`, `found`, `own`
    messages         an error does not lead with its field, option or subject
    long_functions   a function has more than 40 lines of code
    long_files       a file has more than 250 lines of code
    shared_types     a public class has the name of another one
    shared_files     a file has the name of another one

Docstrings, comments and blank lines are not lines of code. `docs.tools.ceilings` compares the
numbers of these with a table.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from docs.tools.messages import ROOTS, messages

PRONOUNS: Final = frozenset(
    ("chosen", "each", "found", "held", "kept", "own", "place", "told", "whole")
)
FUNCTION_LINES, FILE_LINES = 40, 250
ALL: Final = "all"
"""The package of what concerns several packages."""

_LEAD = re.compile(
    r"(?!(?:an?|the|each|every|with)\b)(?:[\w-]+ ){0,3}[`⟨]|cannot |no plan fits |\["
)
_NO_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)


@dataclass(frozen=True, slots=True)
class Instance:
    """One place in the code where a habit shows."""

    package: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.text}"


Instances = Mapping[str, Sequence[Instance]]
"""All instances of each habit."""


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the library: its syntax tree, all nodes of it, the numbers of its lines of code."""

    file: str
    tree: ast.Module
    nodes: Sequence[ast.AST]
    code_lines: frozenset[int]

    @property
    def package(self) -> str:
        """The folder below `jaxpipe`, `models` or `topo`."""
        return package_of(self.file)


def package_of(file: str) -> str:
    """Return the top-level package of a file.

    >>> package_of("jaxpipe/plan/layout/bounds.py"), package_of("topo/units.py")
    ('plan', 'topo')
    >>> package_of("jaxpipe/errors.py")
    'jaxpipe'
    """
    parts = file.split("/")
    return parts[1] if parts[0] == "jaxpipe" and len(parts) > 2 else parts[0]


def modules(root: Path) -> tuple[Module, ...]:
    """Return all files of the library, in order."""
    paths = sorted(path for name in ROOTS for path in (root / name).rglob("*.py"))
    return tuple(module_of(str(path.relative_to(root)), path.read_text()) for path in paths)


def instances(root: Path) -> Instances:
    """Return all instances of each habit, in the order of the files."""
    library = modules(root)
    by_habit: dict[str, Sequence[Instance]] = {
        "messages": tuple(_vague_messages(root)),
        "shared_types": tuple(_shared_types(library)),
        "shared_files": tuple(_shared_files(library)),
    }
    for habit, find in _IN_ONE_FILE.items():
        by_habit[habit] = tuple(instance for module in library for instance in find(module))
    return by_habit


def pronouns(module: Module) -> Iterator[Instance]:
    """Yield each binding of a pronoun: by assignment, loop, argument or pattern.

    >>> module = module_of("topo/a.py", "for each in plans: held = each")
    >>> [str(name) for name in pronouns(module)]
    ['topo/a.py:1 each', 'topo/a.py:1 held']
    """
    for node in module.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound = name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound = name
            case _:
                continue
        if bound.strip("_") in PRONOUNS:
            yield Instance(module.package, module.file, getattr(node, "lineno", 0), bound)


def long_functions(module: Module) -> Iterator[Instance]:
    """Yield each function with more than 40 lines of code, its signature included."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None, ast.dump(node)
            lines = len(module.code_lines & set(range(node.lineno, node.end_lineno + 1)))
            if lines > FUNCTION_LINES:
                text = f"{node.name} has {lines} lines"
                yield Instance(module.package, module.file, node.lineno, text)


def long_files(module: Module) -> Iterator[Instance]:
    """Yield the file if it has more than 250 lines of code."""
    if len(module.code_lines) > FILE_LINES:
        yield Instance(module.package, module.file, 1, f"has {len(module.code_lines)} lines")


_IN_ONE_FILE: Final[Mapping[str, Callable[[Module], Iterator[Instance]]]] = MappingProxyType(
    {"pronouns": pronouns, "long_functions": long_functions, "long_files": long_files}
)


def module_of(file: str, text: str) -> Module:
    r"""Return a file with this text, parsed once.

    >>> text = "'A docstring.'\n\nx = 1  # one\n# two\ny = [\n    2,\n]\n"
    >>> sorted(module_of("topo/a.py", text).code_lines)
    [3, 5, 6, 7]
    """
    tree = ast.parse(text)
    nodes = tuple(ast.walk(tree))
    return Module(file, tree, nodes, _code_lines(text, nodes))


def _code_lines(text: str, nodes: Iterable[ast.AST]) -> frozenset[int]:
    """Return the numbers of the lines that have code, without those of docstrings."""
    numbers = {
        number
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for number in range(token.start[0], token.end[0] + 1)
    }
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                numbers -= set(range(first, last + 1))
    return frozenset(numbers)


def is_led_by_subject(text: str) -> bool:
    """Return whether a message leads with what it is about: a field, an option, a file or a value.

    A few words may say what that is; a rule, with the field after a colon, may not come first.

    >>> leads = ("`train.batch` (3)", "⟨path⟩ has", "host ⟨name⟩ has", "cannot read ⟨path⟩")
    >>> all(map(is_led_by_subject, leads))
    True
    >>> rules = ("a step trains something: `train.frozen` is", "each host needs an address")
    >>> any(map(is_led_by_subject, rules))
    False
    """
    return _LEAD.match(text) is not None


def _vague_messages(root: Path) -> Iterator[Instance]:
    for message in messages(root):
        if not is_led_by_subject(message.text):
            yield Instance(package_of(message.file), message.file, message.line, message.text)


def _shared_types(library: Iterable[Module]) -> Iterator[Instance]:
    by_name: dict[str, list[Instance]] = defaultdict(list)
    for module in library:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                by_name[node.name].append(
                    Instance(ALL, module.file, node.lineno, f"class {node.name}")
                )
    yield from _all_but_the_first(by_name)


def _shared_files(library: Iterable[Module]) -> Iterator[Instance]:
    by_name: dict[str, list[Instance]] = defaultdict(list)
    for module in library:
        name = Path(module.file).name
        if not name.startswith("__"):
            by_name[name].append(Instance(ALL, module.file, 1, name))
    yield from _all_but_the_first(by_name)


def _all_but_the_first(by_name: Mapping[str, Sequence[Instance]]) -> Iterator[Instance]:
    for instances_of_name in by_name.values():
        yield from instances_of_name[1:]
