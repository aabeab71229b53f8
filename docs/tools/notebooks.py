"""The notebooks as pages, with the outputs of a run that is recorded.

`python -m docs.tools.notebooks [NAME ...]` executes all notebooks, or the named ones, and keeps
what their cells print and draw in `docs/recorded/notebooks`. `make docs` writes a page from each
notebook and its record, in which every code cell has its source: a test fails when a notebook has
changed since. Executing them takes one to two minutes.
"""

import base64
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from os import environ
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "experiments/notebooks"
RECORDS = ROOT / "docs/recorded/notebooks"
_LONGEST_S = 600
_LINK = re.compile(r"\]\((\d_\w+)\.ipynb\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a cell prints, or the name of the picture that it draws."""

    text: str = ""
    picture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A code cell that was executed, and its outputs."""

    source: str
    outputs: tuple[Output, ...]


def names() -> tuple[str, ...]:
    """Return the names of the notebooks, in the order in which they are read."""
    return tuple(path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb")))


def sources(name: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each cell of a notebook, and its text."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    for cell in notebook["cells"]:
        yield cell["cell_type"], "".join(cell["source"])


def read_record(name: str) -> tuple[Cell, ...]:
    """Return the executed cells of a notebook."""
    return msgspec.json.decode((RECORDS / f"{name}.json").read_bytes(), type=tuple[Cell, ...])


def record(name: str) -> None:
    """Execute a notebook, and keep what its cells print and draw."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=_LONGEST_S, resources={"metadata": {"path": str(ROOT)}}
    )
    client.execute()
    RECORDS.mkdir(parents=True, exist_ok=True)
    for old in RECORDS.glob(f"{name}-*.png"):
        old.unlink()
    cells, num_pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        outputs: list[Output] = []
        for text, png in map(_output, cell.outputs):
            if png:
                num_pictures += 1
                picture = f"{name}-{num_pictures}.png"
                (RECORDS / picture).write_bytes(png)
                outputs.append(Output(picture=picture))
            elif outputs and outputs[-1].text:
                # One stream may come in several pieces.
                outputs[-1] = Output(text=outputs[-1].text + text)
            elif text:
                outputs.append(Output(text=text))
        cells.append(Cell(source=cell.source, outputs=tuple(outputs)))
    written = msgspec.json.format(msgspec.json.encode(cells), indent=1)
    (RECORDS / f"{name}.json").write_bytes(written + b"\n")


def _output(output: Mapping[str, object]) -> tuple[str, bytes]:
    """Return the text and the picture of one output of a cell; a picture has no text."""
    if output["output_type"] == "stream":
        # What a terminal would redraw, as a progress line does, is no output.
        return (
            (without_places(str(output["text"])), b"") if output["name"] == "stdout" else ("", b"")
        )
    data = output.get("data")
    assert isinstance(data, Mapping), output
    if "image/png" in data:
        return "", _smaller(base64.b64decode(str(data["image/png"])))
    return without_places(f"{data.get('text/plain', '')}\n"), b""


def without_places(text: str) -> str:
    """Return a text with paths inside the repository as they are from its root.

    >>> without_places(f"{ROOT}/.venv/bin/mpirun -n 2, {ROOT}")
    '.venv/bin/mpirun -n 2, .'
    """
    return text.replace(f"{ROOT}/", "").replace(str(ROOT), ".")


def _smaller(png: bytes) -> bytes:
    """Return a picture in 128 colours: a drawing has fewer, and takes a third of the bytes."""
    from PIL import Image

    with Image.open(BytesIO(png)) as image:
        written = BytesIO()
        image.convert("RGB").quantize(128).save(written, "PNG", optimize=True)
    return written.getvalue()


def notebook_files() -> Mapping[str, str | bytes]:
    """Return the pages of all notebooks and their pictures, by their path in the documentation."""
    pages: dict[str, str | bytes] = {
        f"notebooks/{name}.md": page(list(sources(name)), read_record(name)) for name in names()
    }
    pictures = {
        f"notebooks/{path.name}": path.read_bytes() for path in sorted(RECORDS.glob("*.png"))
    }
    return pages | pictures


def page(cells: Sequence[tuple[str, str]], executed: Sequence[Cell]) -> str:
    r"""Return a notebook as Markdown.

    >>> cell = Cell(source="1 + 1", outputs=(Output(text="2\n"),))
    >>> print(page([("markdown", "# Sum"), ("code", "1 + 1")], [cell]))
    # Sum
    <BLANKLINE>
    ```python
    1 + 1
    ```
    <BLANKLINE>
    ```text
    2
    ```
    """
    parts, outputs = [], iter(executed)
    for kind, text in cells:
        if kind == "markdown":
            parts.append(_LINK.sub(r"](\1.md)", text))
            continue
        parts.append(_fenced("python", text))
        for output in next(outputs).outputs:
            if output.picture:
                parts.append(f"![Output of the cell above]({output.picture})")
            else:
                parts.append(_fenced("text", output.text.rstrip("\n")))
    return "\n\n".join(parts)


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    # Kernels and the ranks that they start find this tree, wherever the package is installed.
    environ["PYTHONPATH"] = str(ROOT)
    for asked in sys.argv[1:] or names():
        record(asked)
