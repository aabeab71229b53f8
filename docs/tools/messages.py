"""Every error message in the code, as a template: the text, and names where values go."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jaxpipe import errors

ROOTS = ("jaxpipe", "models", "topo")


@dataclass(frozen=True, slots=True)
class Message:
    """An error that the code raises, and where."""

    error: str
    text: str
    file: str
    line: int = field(compare=False)


def error_classes() -> tuple[type[Exception], ...]:
    """Return the error tree, each class after its base."""
    classes: list[type[Exception]] = [errors.JaxpipeError]
    for error in classes:
        classes += error.__subclasses__()
    return tuple(error for error in classes if error.__module__ == errors.__name__)


def messages(root: Path) -> Iterator[Message]:
    """Yield all messages whose text is in the code; `ValueError`s too, which are translated."""
    known = {error.__name__ for error in error_classes()} | {"ValueError"}
    files = sorted(path for name in ROOTS for path in (root / name).rglob("*.py"))
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                text = _text(node.exc.args[0]) if node.exc.args else None
                if name in known and text is not None and any(map(str.isalpha, text)):
                    yield Message(name, text, str(path.relative_to(root)), node.lineno)


def _text(node: ast.expr) -> str | None:
    """Return the text of a literal, an f-string or a sum of them, with names in place of values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_part, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _text(left), _text(right)
            return None if first is None else first + (second or "…")
    return None


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue), ast.dump(node)
    return f"⟨{_name(node.value)}⟩"


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").replace("_", " ")
        case ast.Call(func=ast.Attribute(attr="join"), args=[listed]):
            return _name(listed)
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return f"number of {_name(counted)}"
    return "value"
