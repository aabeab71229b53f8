"""A refusal names the option that the user has given, and not the field that it fills."""

from pathlib import Path
from typing import get_type_hints

import pytest

from jaxpipe.cli.command_table import COMMANDS, Command, CommandGroup
from jaxpipe.cli.main import main
from jaxpipe.cli.option_fields import Fills, named_by_option
from jaxpipe.errors import ConfigError
from tests.run.test_verdict import field_names

# A cluster that states its speeds: on others, `plan` measures this machine's before it refuses.
CONFIG = (
    '[run]\nfolder = "run"\n[data]\nfolder = "data"\n[model]\npreset = "tiny"\n'
    '[plan]\ncluster = "homogeneous:hosts=2"\nstages = 1\nreplicas = 2\n[train]\nbatch = 8\n'
)
OTHERS = {"model.preset", "preset"}
"""Names of presets, which are no field: other fields come from them."""


def commands() -> dict[str, Command]:
    named = dict[str, Command]()
    for name, entry in COMMANDS.items():
        if isinstance(entry, CommandGroup):
            named |= {f"{name} {second}": command for second, command in entry.commands.items()}
        else:
            named[name] = entry
    return named


@pytest.mark.parametrize("name", commands())
def test_options_fill_fields_that_there_are(name: str) -> None:
    hints = get_type_hints(commands()[name].load(), include_extras=True)
    marks = [mark for hint in hints.values() for mark in getattr(hint, "__metadata__", ())]
    assert {mark.field for mark in marks if isinstance(mark, Fills)} <= field_names() | OTHERS


@pytest.mark.parametrize(
    ("words", "lead"),
    [
        (("plan", "c.toml", "--model", "nosuch"), "`--model` must be a known name"),
        (("plan", "c.toml", "--set", "model.preset=nosuch"), "`model.preset` must be a known"),
        (("plan", "c.toml", "--cluster", "nosuch"), "`--cluster`: no cluster 'nosuch'"),
        (("plan", "c.toml", "--batch", "7"), "`--batch` must be divisible"),
        (
            ("plan", "c.toml", "--batch", "7", "--set", "train.batch=9"),
            "`train.batch` must be divis",
        ),
        (("published", "plan", "dtfm", "c.toml", "--cluster", "nosuch"), "`--cluster`: no "),
        (("published", "plan", "dtfm", "c.toml", "--model", "nosuch"), "`--model` must be a"),
        (("profile", "--model", "nosuch"), "`--model` must be a known name"),
        (("profile", "--model", "gpt2", "--sequence", "4096"), "`--sequence` must be at most"),
        (("profile", "--model", "gpt2", "--layers", "99"), "`--layers` must be at least 1"),
        (("compare", "c.toml", "--against", "nosuch"), "`--against` must be one of"),
        (("train", "c.toml", "--check", "--transport", "nccl", "--set", "outer.islands=2"), ""),
    ],
)
def test_a_refusal_leads_with_the_option(
    words: tuple[str, ...],
    lead: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(CONFIG)
    assert main(words) == 2
    printed = capsys.readouterr().err
    last = printed.splitlines()[-1]  # after what may be measured once on this machine
    assert last.startswith(f"jaxpipe: {lead}"), printed
    if not lead:
        assert "`outer.islands` (2) and `--transport` (nccl) exclude" in printed
        assert "run.transport" not in printed


def test_a_name_without_a_section_counts_in_front_alone() -> None:
    options = {"layers": "--layers"}
    with pytest.raises(ConfigError, match=r"^`--layers` must be 2$"), named_by_option(options):
        raise ConfigError("`layers` must be 2")
    with pytest.raises(ConfigError, match=r"^`model` has 2 `layers`$"), named_by_option(options):
        raise ConfigError("`model` has 2 `layers`")
