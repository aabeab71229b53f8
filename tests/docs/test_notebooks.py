"""The notebooks on the site: every cell of the notebooks, with the outputs of a recorded run."""

import re
from pathlib import Path

import pytest

from docs.tools.notebooks import (
    RECORDS,
    Cell,
    Output,
    names,
    notebook_files,
    page,
    read_record,
    sources,
)

GUIDE = Path("docs/guide/notebooks.md")


@pytest.mark.parametrize("name", names())
def test_every_code_cell_was_executed_as_it_is_today(name: str) -> None:
    code = [text for kind, text in sources(name) if kind == "code"]
    executed = [cell.source for cell in read_record(name)]
    assert executed == code, f"record it again: python -m docs.tools.notebooks {name}"


@pytest.mark.parametrize("name", names())
def test_a_page_has_outputs_and_every_picture_is_used(name: str) -> None:
    outputs = [output for cell in read_record(name) for output in cell.outputs]
    assert any(output.text for output in outputs)
    pictures = [output.picture for output in outputs if output.picture]
    assert pictures == sorted(path.name for path in RECORDS.glob(f"{name}-*.png"))
    for picture in pictures:
        assert (RECORDS / picture).read_bytes().startswith(b"\x89PNG")
    shown = notebook_files()[f"notebooks/{name}.md"]
    assert isinstance(shown, str)
    assert all(f"]({picture})" in shown for picture in pictures)


@pytest.mark.parametrize("name", names())
def test_a_record_names_no_place_of_its_machine_and_no_failure(name: str) -> None:
    for cell in read_record(name):
        for output in cell.outputs:
            assert not re.search(r"(?<![\w.])/(?:tmp|home|root|work)/", output.text), output.text
            assert "Traceback" not in output.text
            assert "\x1b" not in output.text


def test_every_notebook_has_a_link_on_the_page_of_the_guide() -> None:
    text = GUIDE.read_text()
    assert all(f"(../notebooks/{name}.md)" in text for name in names())


def test_cells_become_code_with_their_outputs_in_order() -> None:
    cells = [("markdown", "See [it](2_plan_a_cluster.ipynb)."), ("code", "f()"), ("code", "g()")]
    executed = [
        Cell(source="f()", outputs=(Output(text="one\n"), Output(picture="a-1.png"))),
        Cell(source="g()", outputs=()),
    ]
    assert page(cells, executed) == (
        "See [it](2_plan_a_cluster.md).\n\n```python\nf()\n```\n\n```text\none\n```\n\n"
        "![Output of the cell above](a-1.png)\n\n```python\ng()\n```"
    )
