"""Labelled lines for a small task: prose of Python's manual, or code of its standard library?

Both come with every CPython, so that nothing is downloaded. Lines of code are stripped; comments,
docstrings and short lines are left out, as well as lines of the manual that are examples.
"""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_MODULES = ("argparse", "ast", "csv", "difflib", "inspect", "mailbox", "optparse", "pickletools")
_SHORTEST = 24  # characters


def write_lines(path: Path, *, num_each: int, seed: int = 0) -> None:
    """Write `num_each` lines of each class, as a label, a tab and a text."""
    random = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for label, lines in (("code", _code()), ("prose", _prose())):
            found = sorted({line.replace("\t", " ") for line in lines})
            for number in random.permutation(len(found))[:num_each]:
                file.write(f"{label}\t{found[number]}\n")


def _code() -> Iterator[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    for module in _MODULES:
        text = (folder / f"{module}.py").read_text(encoding="utf-8")
        inside = _docstrings(ast.parse(text))
        for number, line in enumerate(text.splitlines(), 1):
            code = line.strip()
            if number not in inside and not code.startswith("#") and len(code) >= _SHORTEST:
                yield code


def _docstrings(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that are strings alone."""
    return {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _prose() -> Iterator[str]:
    from pydoc_data.topics import topics

    for text in topics.values():
        for line in text.splitlines():
            prose = line.strip()
            # Examples are indented further than paragraphs.
            if len(prose) >= _SHORTEST and not line.startswith("      ") and "  " not in prose:
                yield prose
