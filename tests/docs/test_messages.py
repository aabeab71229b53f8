"""Error messages as templates, from the code that raises them."""

from pathlib import Path

from docs.tools.messages import error_classes, messages
from jaxpipe import errors

ROOT = Path(__file__).parents[2]


def test_a_message_is_its_text_with_names_for_values(tmp_path: Path):
    for name in ("jaxpipe", "models", "topo"):
        (tmp_path / name).mkdir()
    (tmp_path / "topo/links.py").write_text(
        "raise ValueError(f'`{name}` is {self.given!r}: give ' + f'{\", \".join(choices)}')\n"
        "raise KeyError('not of ours')\n"
        "raise ValueError(message)\n"
    )
    (found,) = messages(tmp_path)
    assert found.text == "`⟨name⟩` is ⟨given⟩: give ⟨choices⟩"
    assert (found.error, found.file) == ("ValueError", "topo/links.py")


def test_messages_of_the_code_are_found():
    found = list(messages(ROOT))
    assert len(found) > 200
    assert {"ConfigError", "PlanError", "RunError", "ValueError"} <= {each.error for each in found}


def test_the_tree_has_all_classes_and_each_base_comes_first():
    tree = error_classes()
    defined = [each for each in vars(errors).values() if isinstance(each, type)]
    assert set(tree) == {each for each in defined if issubclass(each, errors.JaxpipeError)}
    for i, each in enumerate(tree[1:], start=1):
        assert each.__base__ in tree[:i]
