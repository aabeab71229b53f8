"""Assemble the sources of the site in `build/docs`: the written pages and the generated ones.

Run `python -m docs.tools.assemble`, then `mkdocs build --strict`; `make docs` does both. It depends
on no site generator: each page is Markdown, and includes parts by the snippet syntax.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.tools.experiments import experiment_files
from docs.tools.floors import draw_floors
from docs.tools.notebooks import notebook_files
from docs.tools.reference import reference_pages
from jaxpipe import topo
from jaxpipe.pictures.cluster_map import draw_map

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
BUILT = ROOT / "build/docs"
_COPIED = (".md", ".css", ".js", ".svg", ".png")
_NOT_PAGES = {"tools", "recorded"}
_IMAGES = ("experiments/quickstart/results/timeline.png",)


def main() -> None:
    """Write the sources of the site, replacing earlier ones."""
    shutil.rmtree(BUILT, ignore_errors=True)
    for path, content in site_files().items():
        file = BUILT / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def site_files() -> Mapping[str, str | bytes]:
    """Return all files of the site's sources: their content by their path."""
    generated = {f"generated/{name}": text for name, text in reference_pages(ROOT).items()}
    return {
        **dict(_written()),
        **experiment_files(ROOT),
        **notebook_files(),
        **generated,
        "generated/floors.svg": draw_floors(ROOT),
        "generated/sites.svg": _map("case5-worldwide"),
        **{path: (ROOT / path).read_bytes() for path in _IMAGES},
    }


def _written() -> Iterator[tuple[str, bytes]]:
    for path in sorted(PAGES.rglob("*")):
        if path.is_file() and path.suffix in _COPIED and not _NOT_PAGES & set(path.parts):
            yield str(path.relative_to(PAGES)), path.read_bytes()


def _map(cluster: str) -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "sites.svg"
        draw_map(topo.load(cluster), file)
        return file.read_bytes()


if __name__ == "__main__":
    main()
