"""The picture of the floors, drawn from the layers that import-linter enforces."""

import tomllib
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any

WIDTH, ROW, GAP, LEFT = 760, 34, 14, 40
_PER_ROW = 5


def layers(root: Path) -> tuple[tuple[str, ...], ...]:
    """Return the packages of each layer, from the top."""
    for contract in _contracts(root):
        if contract["type"] == "layers":
            return tuple(_members(layer) for layer in contract["layers"])
    raise AssertionError("pyproject.toml has no contract of layers")


def without_accelerator(root: Path) -> frozenset[str]:
    """Return the packages that may import neither jax nor MPI."""
    return frozenset(
        package
        for contract in _contracts(root)
        if contract["type"] == "forbidden"
        and {"jax", "mpi4py"} <= set(contract["forbidden_modules"])
        for package in contract["source_modules"]
    )


def draw_floors(root: Path) -> str:
    """Return the SVG: a band for each layer, a box for each package."""
    plain, floors = without_accelerator(root), layers(root)
    heights = [GAP + (ROW + GAP) * -(-len(floor) // _PER_ROW) for floor in floors]
    tops = [0, *accumulate(height + 6 for height in heights)]
    total = tops[-1]
    parts = [_band(floor, top, plain) for floor, top in zip(floors, tops, strict=False)]
    title = "Layers of packages; a package imports only from the layers below it"
    arrow = (
        f'<path class="arrow" d="M 18 12 V {total - 18} m -6 -10 l 6 10 l 6 -10"/>'
        f'<text class="note" transform="translate(10 {total / 2}) rotate(-90)">imports</text>'
    )
    return (
        f'<svg class="floors" viewBox="0 0 {WIDTH} {total}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{title}</title>{arrow}{"".join(parts)}</svg>\n'
    )


def _band(floor: tuple[str, ...], top: int, plain: frozenset[str]) -> str:
    rows = [floor[i : i + _PER_ROW] for i in range(0, len(floor), _PER_ROW)]
    height = GAP + (ROW + GAP) * len(rows)
    width = (WIDTH - LEFT - GAP) // max(len(row) for row in rows)
    boxes = [
        _box(name, LEFT + GAP + i * width, top + GAP + r * (ROW + GAP), width - GAP, name in plain)
        for r, row in enumerate(rows)
        for i, name in enumerate(row)
    ]
    band = f'<rect class="floor" x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{height}"/>'
    return band + "".join(boxes)


def _box(name: str, x: int, y: int, width: int, is_plain: bool) -> str:
    kind = "plain" if is_plain else "package"
    shown = escape(name.removeprefix("jaxpipe."))
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{ROW}" rx="4"/>'
        f'<text x="{x + width / 2}" y="{y + ROW / 2 + 5}">{shown}</text>'
    )


def _members(layer: str) -> tuple[str, ...]:
    names = layer.replace(":", "|").split("|")
    return tuple(name.strip().strip("()") for name in names)


def _contracts(root: Path) -> list[dict[str, Any]]:
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    return linter["contracts"]
