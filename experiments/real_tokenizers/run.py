"""Prepare texts and conversations with real tokenizers, and compare the ids with transformers.

    python -m experiments.real_tokenizers.run --python PYTHON [--path FOLDER]
        [--names NAME ...] [--out FOLDER]

PYTHON has transformers; FOLDER, if given, comes first on its PYTHONPATH, with another version.
Tokenizers are downloaded with `npm pack` into `data/tokenizers`. Tables are written into `results`,
or into the FOLDER of `--out`.
"""

import hashlib
import json
import resource
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import tyro

from experiments.finetune.command import jaxpipe
from experiments.other_python import answer_of
from experiments.real_tokenizers.texts import KINDS, conversations, texts
from experiments.table import Row, markdown, update_csv
from jaxpipe.runtime.data import Dataset, open_dataset

_HERE: Final = Path(__file__).parent
_KEPT: Final = Path("data/tokenizers")
_FILES: Final = ("package/models/tokenizer.json", "package/models/tokenizer_config.json")
_DEADLINE_S: Final = 900.0

_KNOWN: Final = {("llama2", "4"): 2, ("deepseek_v3", "4"): 120}
"""Documents that version 4 of transformers reads in another way than version 5: see the README."""


def main(
    python: Path,
    path: Path | None = None,
    names: tuple[str, ...] = (),
    out: Path = _HERE / "results",
) -> int:
    """Print and write a row for each tokenizer; return 1 if others differ than the known ones."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())["tokenizers"]
    order = [case["name"] for case in cases]
    rows, version = [], ""
    for case in cases:
        if not names or case["name"] in names:
            version, row = _compared(case, python, path)
            rows.append(row)
            print(row, flush=True)
    name = f"transformers-{version.partition('.')[0]}.csv"
    out.mkdir(parents=True, exist_ok=True)
    print(markdown(update_csv(rows, out / name, key="tokenizer", order=order)))
    return int(any(map(_is_wrong, rows)))


def _is_wrong(row: Mapping[str, Any]) -> bool:
    major = str(row["transformers"]).partition(".")[0]
    known = _KNOWN.get((row["tokenizer"], major), 0)
    return row["different documents"] != known or bool(row["different chats"])


def _compared(case: Mapping[str, str], python: Path, path: Path | None) -> tuple[str, Row]:
    folder = downloaded(case)
    drawn, talks = list(texts()), list(conversations())
    answer = answer_of(
        python,
        _HERE / "theirs.py",
        {"texts": [text for _, text in drawn], "conversations": talks},
        str(folder),
        timeout_s=_DEADLINE_S,
        path=() if path is None else (path,),
    )
    chats = answer["conversations"]
    asked = [talk for talk, chat in zip(talks, chats, strict=False) if "ids" in chat]
    with TemporaryDirectory() as place:
        texts_s, documents = _prepared(
            [{"text": text} for _, text in drawn], folder, Path(place, "a")
        )
        frame = documents.tokenizer.frame
        ends = [frame.separator[len(frame.closing) :]]
        ids = [ids for ids, _ in _documents(documents)]
        wrong = _different(ids, answer["texts"], ends)
        for number in wrong[:5]:
            print("   ", drawn[number], ids[number], answer["texts"][number], flush=True)
        row: dict[str, str | int | float] = {
            "tokenizer": case["name"],
            "transformers": answer["transformers"],
            "entries": documents.vocabulary,
            "documents": len(ids),
            "different documents": len(wrong),
            "CPU seconds": f"{texts_s:.1f}",
        }
        row |= {"chats": 0, "different chats": 0, "masks": 0, "refused by the template": 0}
        if asked:
            _, shown = _prepared([{"messages": talk} for talk in asked], folder, Path(place, "b"))
            row |= _chats(list(_documents(shown)), chats, [(), frame.separator])
    row["kinds of text that differ"] = ", ".join(
        kind for kind in KINDS if any(drawn[number][0] == kind for number in wrong)
    )
    return answer["transformers"], row


def _chats(
    ours: Sequence[tuple[list[int], list[bool]]],
    theirs: Sequence[Mapping[str, Any]],
    ends: Sequence[Sequence[int]],
) -> dict[str, int]:
    """Return how many conversations have other ids, or count other tokens where that is known."""
    shown = [chat for chat in theirs if "ids" in chat]
    wrong = set(_different([ids for ids, _ in ours], [chat["ids"] for chat in shown], ends))
    masked = [number for number, chat in enumerate(shown) if chat["counted"] is not None]
    for number in masked:
        theirs_counted = shown[number]["counted"]
        if ours[number][1][: len(theirs_counted)] != theirs_counted:
            wrong.add(number)
    for number in sorted(wrong)[:3]:
        print("   ", ours[number], shown[number], flush=True)
    return {
        "chats": len(shown),
        "different chats": len(wrong),
        "masks": len(masked),
        "refused by the template": len(theirs) - len(shown),
    }


def _different(
    ours: Sequence[list[int]], theirs: Sequence[list[int]], ends: Sequence[Sequence[int]]
) -> list[int]:
    """Return which documents are not theirs with one of the ends behind."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return [n for n, (one, other) in pairs if one not in ([*other, *end] for end in ends)]


def downloaded(case: Mapping[str, str]) -> Path:
    """Return the folder with the files of a tokenizer, which npm downloads once.

    Raises:
        ValueError: the package has another SHA-256 than the case.
    """
    folder = _KEPT / case["name"]
    if folder.exists():
        return folder
    _KEPT.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", case["package"]]
    done = subprocess.run(
        command, cwd=_KEPT, stdout=subprocess.PIPE, text=True, check=True, timeout=_DEADLINE_S
    )
    package = _KEPT / done.stdout.split()[-1]
    checksum = hashlib.sha256(package.read_bytes()).hexdigest()
    if checksum != case["sha256"]:
        raise ValueError(f"`sha256` of {case['package']} must be {case['sha256']}, not {checksum}")
    with TemporaryDirectory(dir=_KEPT) as place, tarfile.open(package) as archive:
        for name in _FILES:
            content = archive.extractfile(name)
            assert content is not None, name
            Path(place, Path(name).name).write_bytes(content.read())
        Path(place).rename(folder)
        Path(place).mkdir()  # which the context removes
    package.unlink()
    return folder


def _prepared(
    records: Sequence[Mapping[str, Any]], tokenizer: Path, place: Path
) -> tuple[float, Dataset]:
    """Return the CPU seconds of `jaxpipe data prepare` for some records, and the dataset."""
    source = place.with_suffix(".jsonl")
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    begun = _cpu_seconds()
    jaxpipe(
        *("data", "prepare", "--out", place, "--source", source, "--tokenizer", tokenizer),
        # Names of special tokens in messages are ids, as transformers has them.
        *("--special-tokens", "all", "--eval-fraction", "0"),
    )
    return _cpu_seconds() - begun, open_dataset(place)


def _cpu_seconds() -> float:
    """Return those of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _documents(dataset: Dataset) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield the ids of each document, and whether they count."""
    assert dataset.documents is not None
    tokens = np.asarray(dataset.train)
    counted = None if dataset.counted is None else np.asarray(dataset.counted.train)
    begin = 0
    for end in np.asarray(dataset.documents.train).tolist():
        counts = [True] * (end - begin) if counted is None else (counted[begin:end] == 1).tolist()
        yield tokens[begin:end].tolist(), counts
        begin = end


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
