"""Scripts and drawings, against golden files."""

import pytest

from tests.topo.golden_cases import FOLDER, texts


@pytest.mark.parametrize("name", texts())
def test_the_text_is_the_golden_file(name: str):
    assert texts()[name] == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_golden_file_has_a_case():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(texts())
