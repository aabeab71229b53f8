"""Read what the code says about itself: attribute docstrings, which Python does not keep."""

import ast
import inspect
import textwrap
from collections.abc import Mapping

import docstring_parser


class DocumentationError(Exception):
    """Something that the reference has to show is not documented in the code."""


def attribute_docs(cls: type) -> Mapping[str, str]:
    """Return the docstring of each attribute of a class, those of its bases included.

    An attribute is documented by the string below it, or in the section `Args` of the class.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ not in ("builtins", "enum"):
            docs |= _own_docs(base)
    return docs


def summary(documented: object) -> str:
    """Return the docstring of a class or a function without its sections and examples.

    Raises:
        DocumentationError: there is no docstring.
    """
    parsed = docstring_parser.parse(inspect.getdoc(documented) or "")
    if not parsed.short_description:
        raise DocumentationError(f"{documented!r} has no docstring")
    rest = (parsed.long_description or "").split(">>>")[0].strip()
    return f"{' '.join(parsed.short_description.split())}\n\n{rest}".strip()


def _own_docs(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    statement = tree.body[0]
    assert isinstance(statement, ast.ClassDef), statement
    docs = {
        argument.arg_name: _one_line(argument.description or "")
        for argument in docstring_parser.parse(cls.__doc__ or "").params
    }
    for attribute, text in zip(statement.body, statement.body[1:], strict=False):
        if (
            isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            docs |= dict.fromkeys(_names(attribute), _one_line(text.value.value))
    return docs


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
