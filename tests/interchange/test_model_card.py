"""A model card is YAML and a table, whatever a stranger calls a model; files of users stay."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.interchange import CARD, ModelCard, is_of_user, write_card

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(name=NAMES, base=NAMES, fact=NAMES, is_adapter=st.booleans())
def test_no_name_adds_a_field_or_a_row(name: str, base: str, fact: str, is_adapter: bool) -> None:
    card = ModelCard(name=name, base=base, is_adapter=is_adapter, facts={"data": fact})
    _, front, body = card.text.split("---\n", maxsplit=2)
    fields = yaml.safe_load(front)
    assert fields.pop("base_model", base) == base
    assert fields == {
        "library_name": "peft" if is_adapter else "transformers",
        "license": "other",
        "license_name": "not-chosen",
        "pipeline_tag": "text-generation",
        "tags": ["jaxpipe", "lora"] if is_adapter else ["jaxpipe"],
    }
    lines = body.splitlines()
    assert len(lines) == 12, lines
    assert [line[:2] for line in lines[6:10]] == ["| "] * 4


def test_a_name_of_a_hub_is_a_field_and_a_folder_is_none(tmp_path: Path) -> None:
    assert 'base_model: "org/model-1.5"' in ModelCard(name="a", base="org/model-1.5").text
    assert "base_model" not in ModelCard(name="a", base=None).text
    text = ModelCard(name="a", base=str(tmp_path)).text
    assert "base_model" not in text
    assert str(tmp_path) not in text
    assert "(a folder)" in text


@pytest.mark.parametrize("change", ["", "more", "---", "<!-- Written by `jaxpipe export` -->\n"])
def test_only_a_card_as_it_was_written_may_be_replaced(change: str, tmp_path: Path) -> None:
    assert not is_of_user(tmp_path)
    write_card(tmp_path, ModelCard(name="a", base=None))
    assert not is_of_user(tmp_path)
    path = tmp_path / CARD
    path.write_text(path.read_text() + change if change else "mine")
    assert is_of_user(tmp_path)
    path.unlink()
    path.symlink_to("elsewhere")
    assert is_of_user(tmp_path)
