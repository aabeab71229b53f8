"""The pages of the reference, from the code."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import jaxpipe
from docs.tools.commands import command_reference
from docs.tools.compatibility import compatibility_reference
from docs.tools.families import families_reference
from docs.tools.fields import choice_table, choices_of, definitions, field_list, forms_of
from docs.tools.messages import Message, error_classes, messages
from docs.tools.source import summary
from jaxpipe import topo
from jaxpipe.config import Config
from jaxpipe.models import GptConfig, num_parameters, preset_config, presets
from jaxpipe.models.catalogue import FAMILY
from jaxpipe.topo.cluster_file import ClusterFile, HostGroup, Measured, Pairs, RegionLink, Speed
from jaxpipe.topo.csv_table import csv_rows


def reference_pages(root: Path) -> Mapping[str, str]:
    """Return the generated parts, by name; pages include them."""
    return {
        "commands.md": command_reference(),
        "configuration.md": _configuration(),
        "compatibility.md": compatibility_reference(),
        "families.md": families_reference(root),
        "presets.md": _presets(),
        "cluster-file.md": _cluster_file(),
        "catalogue.md": _catalogue(root),
        "gpus.md": _gpus(root),
        "errors.md": _errors(),
        "python.md": _python(),
        "messages.md": _messages(root),
    }


def _configuration() -> str:
    parts = []
    for field in fields(Config):
        note = _REQUIRED if field.name in ("run", "model", "data") else ""
        # The section `model` has a form for each family.
        for section in forms_of(field.type):
            shown = _title(field.name, section)
            parts.append(f"## {shown}\n\n{summary(section)}{note}\n\n{field_list(section)}")
            parts += [_choices(choice, section) for choice in choices_of(section)]
    return "\n\n".join(parts)


def _title(name: str, section: Any) -> str:
    family = next((f.default for f in fields(section) if f.name == FAMILY), None)
    return f"`[{name}]`" if family is None else f'`[{name}]`, `family = "{family}"`'


_REQUIRED = "\n\nThis section is required."


def _choices(choices: Any, section: type) -> str:
    names = [f.name for f in fields(section) if choices.__name__ in str(f.type)]
    shown = " and ".join(f"`{name}`" for name in names)
    return f"**Values of {shown}.** {_first_line(choices)}\n\n{choice_table(choices)}"


def _presets() -> str:
    names = [f.name for f in fields(GptConfig)][:6]
    entries = []
    for name in presets():
        config = preset_config(name)
        sizes = ", ".join(f"`{field}` {_shown(getattr(config, field))}" for field in names)
        size = num_parameters(config, layers=config.num_layers, embed=True, head=True)
        entries.append((f"`{name}`", f"{size / 1e6:,.1f} M parameters", sizes))
    return definitions(entries)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cluster_file() -> str:
    tables = {
        "The file": ClusterFile,
        "`[[hosts]]`": HostGroup,
        "`[inside_host]`, `[inside_region]`, `[across_regions]`": Speed,
        "`[[links]]`": RegionLink,
        "`[pairs]`": Pairs,
        "`[measured]`": Measured,
    }
    return "\n\n".join(
        f"## {title}\n\n{summary(section)}\n\n{field_list(section)}"
        for title, section in tables.items()
    )


def _catalogue(root: Path) -> str:
    entries = []
    for name in topo.names():
        cluster = topo.load(name)
        counts = (
            _counted(len(cluster.regions), "region"),
            _counted(len(cluster.hosts), "host"),
            _counted(len(cluster), "device"),
        )
        about = _first_comment((root / "topo/data" / f"{name}.toml").read_text())
        entries.append((f"`{name}`", ", ".join(counts), about))
    return definitions(entries)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _first_comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _gpus(root: Path) -> str:
    entries = []
    for row in csv_rows((root / "topo/data/gpus.csv").read_text()):
        type_of_gpu = topo.gpu(row["name"])
        peaks = ", ".join(f"{p} {flops / 1e12:g}" for p, flops in type_of_gpu.peaks)
        memory, power = f"{type_of_gpu.memory_bytes / 2**30:g}", f"{type_of_gpu.watts:g}"
        entries.append((f"`{row['name']}`", f"{memory} GiB, {power} W", f"TFLOP/s: {peaks}"))
    return definitions(entries)


def _errors() -> str:
    return definitions(
        (f"`{error.__name__}`", f"is a `{error.__bases__[0].__name__}`", _first_line(error))
        for error in error_classes()
    )


def _python() -> str:
    """Return the list of names that `import jaxpipe` offers, functions with their arguments."""
    entries = [
        (_called(name), "", _first_line(getattr(jaxpipe, name)))
        for name in jaxpipe.__all__
        if name != "__version__"
    ]
    entries.append(("`__version__`", "", "The version of the installed package."))
    return definitions(entries)


def _called(name: str) -> str:
    public = getattr(jaxpipe, name)
    if not inspect.isfunction(public):
        return f"`{name}`"
    # Names alone: annotations in full are longer than a line of a table.
    arguments, keywords = [], []
    for parameter in inspect.signature(public).parameters.values():
        is_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        shown = parameter.name + ("" if parameter.default is parameter.empty else "=...")
        (keywords if is_keyword else arguments).append(shown)
    listed = [*arguments, *(["*", *keywords] if keywords else [])]
    return f"`{name}({', '.join(listed)})`"


def _first_line(documented: object) -> str:
    return summary(documented).splitlines()[0]


def _messages(root: Path) -> str:
    listing = sorted(set(messages(root)), key=_alphabetical)
    parts = []
    for name in sorted({message.error for message in listing}, key=_value_error_last):
        of_class = [message for message in listing if message.error == name]
        listed = definitions(
            (_escape(message.text), "", f"`{message.file}`") for message in of_class
        )
        parts.append(f"## {name}: {len(of_class)} messages\n\n{listed}")
    return "\n\n".join(parts)


def _alphabetical(message: Message) -> tuple[str, str]:
    return (message.error, message.text.lstrip("`⟨"))


def _value_error_last(name: str) -> tuple[bool, str]:
    return (name == "ValueError", name)


def _escape(text: str) -> str:
    """Return a message as Markdown that shows it as it is; what backticks enclose stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        p if i % 2 else re.sub(r"([*_<>\[\]\\])", r"\\\1", p) for i, p in enumerate(parts)
    )
