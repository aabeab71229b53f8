"""Prepare large files: `python -m experiments.preparation.run PART [--python PYTHON]`.

compare  MB/s of `jaxpipe data prepare` beside `datasets.map` with the same tokenizer: minutes
memory   the largest memory of a preparation, of a small and of a large file of each kind

PYTHON has datasets and transformers. Tokenizers are those of `experiments.real_tokenizers`.
"""

import os
import resource
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import numpy as np
import tyro

from experiments.finetune.command import jaxpipe
from experiments.finetune.peak_memory import run_watched
from experiments.other_python import answer_of
from experiments.preparation.sources import write_source
from experiments.real_tokenizers import run as real_tokenizers
from experiments.table import Row, markdown, write_csv
from jaxpipe.runtime.data import open_dataset

_HERE: Final = Path(__file__).parent
_TOKENIZERS: Final = Path(real_tokenizers.__file__).with_name("cases.toml")
_DEADLINE_S: Final = 3600.0
_SHOWN: Final = 200
"""Documents whose ids are compared one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The seconds of a program, on the clock and of processors, and its memory."""

    seconds: float
    cpu_s: float
    peak_bytes: int


def main(
    part: tyro.conf.Positional[Literal["compare", "memory"]], python: Path | None = None
) -> None:
    """Print and write the table of a part.

    Raises:
        AssertionError: tokens differ from those of `datasets.map`.
    """
    case = tomllib.loads((_HERE / "cases.toml").read_text())[part]
    kinds = tomllib.loads(_TOKENIZERS.read_text())["tokenizers"]
    tokenizer = next(kind for kind in kinds if kind["name"] == case["tokenizer"])
    folder = real_tokenizers.downloaded(tokenizer).absolute()
    if part == "memory":
        rows = list(_memory(case, folder))
    elif python is None:
        raise SystemExit("`--python` must name a Python with datasets and transformers")
    else:
        rows = _compared(case, folder, python)
    write_csv(rows, _HERE / "results" / f"{part}.csv")
    print(f"\n{markdown(rows)}", flush=True)


def _compared(case: Mapping[str, Any], tokenizer: Path, python: Path) -> list[Row]:
    rounds: dict[str, list[_Run]] = {"jaxpipe": [], "datasets.map": []}
    with TemporaryDirectory() as place:
        source = Path(place, "records.jsonl")
        size = write_source(
            source, "records", num_bytes=case["megabytes"] * 10**6, characters=case["characters"]
        )
        for number in range(case["rounds"]):
            out, answers = Path(place, f"ours-{number}"), list[dict[str, Any]]()
            rounds["jaxpipe"].append(_timed(partial(_prepare, source, tokenizer, out)))
            request = {
                "source": str(source),
                "tokenizer": str(tokenizer),
                "cache": str(Path(place, f"cache-{number}")),
                "out": str(Path(place, f"theirs-{number}")),
                "cores": len(os.sched_getaffinity(0)),
                "shown": _SHOWN,
            }
            rounds["datasets.map"].append(_timed(partial(_map, python, request, answers)))
            print(answers[0]["versions"], flush=True)
            _check_equal(out, answers[0])
    theirs_s = median(run.seconds for run in rounds["datasets.map"])
    return [_row(name, size / 1e6, runs, theirs_s=theirs_s) for name, runs in rounds.items()]


def _map(python: Path, request: Mapping[str, Any], answers: list[dict[str, Any]]) -> None:
    answers.append(answer_of(python, _HERE / "theirs.py", request, timeout_s=_DEADLINE_S))


def _row(name: str, megabytes: float, runs: Sequence[_Run], *, theirs_s: float) -> Row:
    rates = sorted(megabytes / run.seconds for run in runs)
    return {
        "program": name,
        "MB": f"{megabytes:.0f}",
        "rounds": len(runs),
        "cores": len(os.sched_getaffinity(0)),
        "MB/s": f"{median(rates):.2f}",
        "from": f"{rates[0]:.2f}",
        "to": f"{rates[-1]:.2f}",
        "CPU seconds": f"{median(run.cpu_s for run in runs):.1f}",
        "peak GiB, all processes": f"{max(run.peak_bytes for run in runs) / 2**30:.2f}",
        "ratio": f"{theirs_s / median(run.seconds for run in runs):.2f}",
    }


def _check_equal(out: Path, answer: Mapping[str, Any]) -> None:
    dataset = open_dataset(out)
    assert dataset.documents is not None
    tokens, ends = np.asarray(dataset.train), np.asarray(dataset.documents.train)
    separator = dataset.tokenizer.frame.separator
    assert len(tokens) - len(ends) * len(separator) == answer["num_tokens"], answer["num_tokens"]
    begin = 0
    for end, theirs in zip(ends.tolist(), answer["documents"], strict=False):
        assert tokens[begin:end].tolist() == [*theirs, *separator], begin
        begin = end


def _memory(case: Mapping[str, Any], tokenizer: Path) -> Iterator[Row]:
    for kind in case["kinds"]:
        for megabytes in case["megabytes"]:
            with TemporaryDirectory() as place:
                name = "a.txt" if kind in ("text", "one line") else "a.jsonl"
                source = Path(place, name)
                size = write_source(source, kind, num_bytes=megabytes * 10**6)
                run = _timed(partial(_prepare, source, tokenizer, Path(place, "d")))
                row = {
                    "kind": kind,
                    "MB": f"{size / 1e6:.0f}",
                    "CPU seconds": f"{run.cpu_s:.1f}",
                    "peak MiB": f"{run.peak_bytes / 2**20:.0f}",
                }
                print(row, flush=True)
                yield row


def _prepare(source: Path, tokenizer: Path, out: Path) -> None:
    fields: Sequence[str | Path] = ("--source", source, "--tokenizer", tokenizer, "--out", out)
    # Names of special tokens in texts are ids, as in transformers.
    jaxpipe("data", "prepare", *fields, "--special-tokens", "all", "--eval-fraction", "0")


def _timed(work: Callable[[], None]) -> _Run:
    """Do what other processes do, and return what it took."""
    begun, cpu_s = time.perf_counter(), _cpu_seconds()
    with run_watched() as watched:
        work()
    return _Run(
        seconds=time.perf_counter() - begun,
        cpu_s=_cpu_seconds() - cpu_s,
        peak_bytes=watched.peak_bytes,
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    tyro.cli(main)
