"""The READMEs of the experiments as pages, with their pictures."""

import re
from collections.abc import Mapping
from os.path import normpath, relpath
from pathlib import Path

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def experiment_files(root: Path) -> Mapping[str, str | bytes]:
    """Return the pages and pictures, by their path in the documentation.

    A link to another experiment's text stays a link; one to a file that the site does not have
    becomes the path of that file in the repository.

    Raises:
        FileNotFoundError: a text shows a picture, or links to a file, that is not there.
    """
    texts = {
        str(path.relative_to(root)): path.read_text()
        for path in sorted((root / "experiments").rglob("*.md"))
        if path.parent.name not in ("results", "published")
    }
    files: dict[str, str | bytes] = {}
    for source, text in texts.items():
        links = _Links(root, source, frozenset(texts))
        files[page_of(source)] = _LINK.sub(links.rewrite, text)
        files |= links.pictures
    return files


def page_of(source: str) -> str:
    """Return where the text of an experiment stands in the documentation.

    >>> page_of("experiments/codecs/README.md"), page_of("experiments/faults/ulfm.md")
    ('experiments/codecs/index.md', 'experiments/faults/ulfm.md')
    """
    if source == "experiments/README.md":
        return "experiments.md"
    return source.replace("README.md", "index.md")


class _Links:
    """Rewrites the links of one text; collects the pictures that it shows."""

    def __init__(self, root: Path, source: str, texts: frozenset[str]) -> None:
        self._root, self._source, self._texts = root, source, texts
        self.pictures: dict[str, bytes] = {}

    def rewrite(self, link: re.Match[str]) -> str:
        bang, label, target = link.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or "://" in path:
            return link[0]
        wanted = normpath(Path(self._source).parent / path)
        if (self._root / wanted).is_dir() and f"{wanted}/README.md" in self._texts:
            wanted += "/README.md"
        if not (self._root / wanted).exists():
            raise FileNotFoundError(f"{self._source} links to {target}, which does not exist")
        here = Path(page_of(self._source)).parent
        if bang:
            self.pictures[wanted] = (self._root / wanted).read_bytes()
            return f"![{label}]({relpath(wanted, here)})"
        if wanted in self._texts:
            return f"[{label}]({relpath(page_of(wanted), here)}{hash_sign}{anchor})"
        return f"`{wanted}`" if label.strip("`") in target else f"{label} (`{wanted}`)"
