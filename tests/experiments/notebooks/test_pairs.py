"""Notebooks come in pairs with the same cells, and without outputs."""

import json
from pathlib import Path

import pytest

FOLDER = Path("experiments/notebooks")
SCRIPTS = sorted(FOLDER.glob("*.py"))


def cells_of_script(text: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each cell of a script in the percent format."""
    _, *cells = text.split("\n# %%")
    found = []
    for cell in cells:
        head, _, body = cell.partition("\n")
        kind = "markdown" if "[markdown]" in head else "code"
        lines = body.strip().splitlines()
        if kind == "markdown":
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append((kind, "\n".join(lines)))
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_both_of_a_pair_have_the_same_cells_and_no_outputs(script: Path):
    notebook = json.loads(script.with_suffix(".ipynb").read_text())
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert cells == cells_of_script(script.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert {(len(cell["outputs"]), cell["execution_count"]) for cell in code} == {(0, None)}


def test_every_notebook_has_a_pair_and_a_line_in_the_readme():
    names = {path.stem for path in SCRIPTS}
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == names
    readme = (FOLDER / "README.md").read_text()
    assert all(f"({name}.ipynb)" in readme for name in names)
