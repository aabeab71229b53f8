"""The built site: strict, whole, and read without a network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from docs.tools.experiments import experiment_files, page_of

ROOT = Path(__file__).parents[2]


class Links(HTMLParser):
    """Collects what a page loads, what it links to, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.linked.append(str(given["href"]))
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(str(given["href"]))
        elif given.get("src"):
            self.loaded.append(str(given["src"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    build = ["mkdocs", "build", "--strict", "--site-dir", str(folder)]
    for module in (["docs.tools.assemble"], build):
        done = subprocess.run(
            [sys.executable, "-m", *module],
            cwd=ROOT,
            env=quiet,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_a_network(site: Path):
    for page in site.rglob("*.html"):
        assert [each for each in Links(page).loaded if "//" in each] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?https?:", style.read_text()), style


def test_every_link_leads_somewhere(site: Path):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 20
    for page, links in pages.items():
        for target in (*links.linked, *links.loaded):
            path, _, anchor = target.partition("#")
            if "://" in path or path.startswith(("mailto:", "data:")):
                continue
            file = (page.parent / unquote(path)).resolve() if path else page
            assert file.is_file(), f"{page.name}: {target}"
            if anchor and file in pages:
                assert unquote(anchor) in pages[file].anchors, f"{page.name}: {target}"


def test_every_experiment_has_a_page(site: Path):
    for readme in (ROOT / "experiments").glob("*/README.md"):
        page = page_of(str(readme.relative_to(ROOT)))
        assert (site / page).with_suffix(".html").is_file()


def test_links_of_an_experiment_follow_it_into_the_site(tmp_path: Path):
    one = tmp_path / "experiments/one"
    (one / "results").mkdir(parents=True)
    (one / "results/a.png").write_bytes(b"png")
    (one / "cases.toml").write_text("")
    (one / "more.md").write_text("# More")
    (one / "README.md").write_text(
        "![a](results/a.png) [more](more.md#x) [cases](cases.toml) [the sizes](cases.toml)"
    )
    files = experiment_files(tmp_path)
    assert files["experiments/one/index.md"] == (
        "![a](results/a.png) [more](more.md#x) `experiments/one/cases.toml` "
        "the sizes (`experiments/one/cases.toml`)"
    )
    assert files["experiments/one/results/a.png"] == b"png"


def test_a_dead_link_of_an_experiment_fails_the_build(tmp_path: Path):
    (tmp_path / "experiments/one").mkdir(parents=True)
    (tmp_path / "experiments/one/README.md").write_text("[gone](gone.md)")
    with pytest.raises(FileNotFoundError, match=r"README\.md links to gone\.md"):
        experiment_files(tmp_path)
