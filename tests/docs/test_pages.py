"""What the README and the pages say about the tree is so: paths, commands, fields, outputs."""

import dataclasses
import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.tools.commands import commands, options
from docs.tools.fields import forms_of
from docs.tools.floors import draw_floors, layers, without_accelerator
from docs.tools.record import FOLDER, output, recorded
from jaxpipe import topo
from jaxpipe.cli.command_table import COMMANDS, CommandGroup
from jaxpipe.config import Config

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
ROOTS = "jaxpipe|topo|models|tests|experiments|docs"
FILES = (".toml", ".json", ".safetensors")
SECTIONS: dict[str, Any] = {each.name: each.type for each in dataclasses.fields(Config)}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pages
def test_every_path_that_a_page_names_exists(page: Path):
    named = re.findall(rf"(?<![\w./])((?:{ROOTS})/[\w./-]*\w)", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_file_whose_source_is_noticed_exists():
    named = re.findall(rf"(?:{ROOTS})/[\w./*-]*[\w*]", (ROOT / "NOTICE").read_text())
    assert len(named) > 10
    assert [pattern for pattern in named if not list(ROOT.glob(pattern))] == []


@pages
def test_every_module_that_a_page_names_exists(page: Path):
    for dotted in re.findall(r"`(jaxpipe(?:\.\w+)+)`", page.read_text()):
        parent, _, name = dotted.rpartition(".")
        try:
            importlib.import_module(dotted)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(parent), name), dotted


@pages
def test_every_file_that_a_page_includes_exists(page: Path):
    text = page.read_text()
    included = re.findall(r'^--8<-- "([^"]+)"$', text, re.M)
    # Formatters take an inclusion in a block of Python for an expression, and add spaces to it.
    assert len(re.findall(r"--\s*8", text)) == len(included)
    for path in included:
        if not path.startswith("generated/"):
            assert (ROOT / "docs" / path).exists() or (ROOT / path).exists(), path


@pages
def test_every_command_that_a_page_shows_exists_with_its_options(page: Path):
    text = page.read_text().replace("\\\n", " ")
    shown = re.findall(r"^\s*(?:\$ |    )(?:\S*/|mpirun .*)?jaxpipe (.*)$", text, re.M)
    for line in shown:
        words = shlex.split(line.partition(" > ")[0].partition(" -- ")[0])
        name = " ".join(words[:2]) if isinstance(COMMANDS.get(words[0]), CommandGroup) else words[0]
        assert name in commands(), line
        known = {
            flag
            for each in options(commands()[name])
            for flag in re.findall(r"`(-[^`]*)`", each.typed)
        }
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, line
        _check_settings([word for word in words if re.match(r"\w+\.\w+=", word)])


@pages
def test_every_field_that_a_page_names_exists(page: Path):
    names = "|".join(SECTIONS)
    named = re.findall(rf"`((?:{names})\.\w+)(?:`| =)", page.read_text())
    _check_settings([each for each in named if Path(each).suffix not in FILES])


@pages
def test_every_piece_of_configuration_that_a_page_shows_is_one(page: Path):
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S):
        if not block.startswith("--8<--"):
            tree = tomllib.loads(block)
            _check_settings([f"{name}.{key}" for name, part in tree.items() for key in part])


def _check_settings(settings: list[str]) -> None:
    for setting in settings:
        section, _, key = setting.partition("=")[0].partition(".")
        forms = map(dataclasses.fields, forms_of(SECTIONS[section]))
        known = {each.name for fields in forms for each in fields} | {"preset"}
        assert key in known, setting


def test_the_annotated_cluster_is_as_its_comments_say():
    cluster = topo.load(str(ROOT / "docs/examples/cluster.toml"))
    assert [host.name for host in cluster.hosts] == [
        "dgx", "ohio-0", "ohio-1", "virginia-0", "virginia-1",
    ]  # fmt: skip
    assert len(cluster) == 8
    campus, ohio, virginia = 0, 4, 6
    gbps = 1e9 / 8
    assert cluster.bandwidth_bytes_per_s[campus, ohio] == 0.5 * gbps
    assert cluster.bandwidth_bytes_per_s[ohio, campus] == 2 * gbps
    assert cluster.latency_s[campus, virginia] == 0.03
    assert cluster.alone_bytes_per_s[ohio, ohio + 1] == 10 * gbps
    assert cluster.devices[ohio].effective_flops_per_s == 42e12
    shared = {(each.source, each.destination): each.bytes_per_s for each in cluster.trunks}
    assert shared == dict.fromkeys((("ohio", "virginia"), ("virginia", "ohio")), 3 * gbps)


def test_the_described_gpu_is_as_its_comments_say():
    device = topo.load(str(ROOT / "docs/examples/described-gpu.toml")).devices[0]
    assert device.gpu is not None
    assert (device.gpu.name, device.memory_bytes) == ("RTX-3090-48GB", 48 * 2**30)
    assert device.flops_per_s(topo.Precision.TF32) == 71e12


@pytest.mark.parametrize("name", [name for name, each in recorded().items() if each.repeats])
def test_what_a_page_shows_is_what_the_command_prints(name: str):
    assert output(recorded()[name].command) == (FOLDER / f"{name}.txt").read_text()


def test_every_record_has_a_command_and_names_no_place_of_its_machine():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*recorded(), "newcomer"}
    for path in FOLDER.glob("*.txt"):
        assert not re.search(r"(?<![\w.])/(?:tmp|home|root|work)/", path.read_text()), path


def test_the_picture_and_the_table_of_floors_have_every_package():
    drawn, page = draw_floors(ROOT), (ROOT / "docs/architecture.md").read_text()
    packages = [name for floor in layers(ROOT) for name in floor if name != "jaxpipe.__main__"]
    assert "jaxpipe.plan" in packages
    for name in packages:
        assert f">{name.removeprefix('jaxpipe.')}</text>" in drawn
        assert f"| `{name}` |" in page
    assert drawn.count('class="plain"') == len(without_accelerator(ROOT))
