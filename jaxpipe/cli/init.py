"""`jaxpipe init`: a commented configuration to start from.

The text is `starter.toml`, in which `{section.field}` stands for a default and
`{section.field:choices}` for the values of an enumeration; both come from the dataclasses.
"""

import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro

_FIELD = re.compile(r"\{(\w+)\.(\w+)(:choices)?\}")


def init(folder: tyro.conf.Positional[Path] = Path(".")) -> int:
    """Write a commented starter configuration, and print the next commands.

    Args:
        folder: where to write `config.toml`; created if missing.
    """
    from jaxpipe.errors import ConfigError
    from jaxpipe.run.terminal.console import console

    path, data = folder / "config.toml", folder / "data"
    text = starter_text(run=folder / "run", data=data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:  # fails if it exists, however late that is
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"`jaxpipe init` overwrites nothing: {error.filename} exists; name another folder"
        ) from error
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
    # Printed for a shell.
    config, dataset, plan = (shlex.quote(str(file)) for file in (path, data, folder / "plan.toml"))
    console.print(
        f"configuration -> {path}\n\n"
        f"next: jaxpipe data prepare --out {dataset}  # add --source for your own texts\n"
        f"      jaxpipe plan {config} -o {plan}  # or leave it to train\n"
        f"      jaxpipe simulate {config}\n"
        f"      jaxpipe show {config}\n"
        f"      jaxpipe train {config}",
        markup=False,
    )
    return 0


def starter_text(*, run: Path, data: Path) -> str:
    """Return the configuration of a small run, with the defaults that the dataclasses have now.

    >>> text = starter_text(run=Path("runs/mine"), data=Path("data/mine"))
    >>> print(text.partition("[checkpoint]")[2].partition("[trace]")[0].strip())
    every = 100  # steps
    keep = 2     # checkpoints on disk
    """
    from importlib.resources import files

    from jaxpipe.config import choices_of, config_from, to_tree
    from jaxpipe.config.read import Config
    from jaxpipe.models import presets

    needed = {"run": {"folder": str(run)}, "data": {"folder": str(data)}}
    defaults = to_tree(config_from({**needed, "model": {"preset": "tiny"}}))
    sections = {field.name: field.type for field in dataclasses.fields(Config)}

    def fill(match: re.Match[str]) -> str:
        section, field, wants_choices = match.groups()
        if wants_choices:
            return ", ".join(choices_of(sections[section], field))
        return _value(defaults, section, field)

    template = (files("jaxpipe.cli") / "starter.toml").read_text(encoding="utf-8")
    # `{presets}` is no field of a section, so it goes first.
    text = _FIELD.sub(fill, template.replace("{presets}", _comment(", ".join(presets()))))
    return "\n\n".join(map(_align, text.split("\n\n")))


def _value(defaults: Mapping[str, Any], section: str, field: str) -> str:
    value = defaults[section][field]
    assert value is not None, f"{section}.{field} has no default to show"
    # JSON's text is TOML's too, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ")


def _align(block: str) -> str:
    """Return the lines of a section, the comments behind its fields below each other."""
    rows = [line.partition("  # ") for line in block.split("\n")]
    width = max((len(field) for field, mark, _ in rows if mark), default=0)
    return "\n".join(
        field.ljust(width) + mark + text if mark else field for field, mark, text in rows
    )
