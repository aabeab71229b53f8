"""Files are checked before a command works, and no file is replaced in silence."""

import os
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.run.folder.output_files import check_output, check_output_folder, check_picture


def test_a_file_that_replaces_another_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_output("--out", None)
    check_output("--out", tmp_path / "new.toml")
    assert capsys.readouterr() == ("", "")
    (tmp_path / "plan.toml").touch()
    check_output("--out", tmp_path / "plan.toml")
    assert capsys.readouterr() == ("", f"the result replaces {tmp_path / 'plan.toml'}\n")
    check_output_folder("--out", tmp_path, ("a", "plan.toml"))
    assert capsys.readouterr().err == f"the result replaces {tmp_path / 'plan.toml'}\n"


def test_a_path_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"`--out` must name a file, .* is a folder"):
        check_output("--out", tmp_path)
    with pytest.raises(ConfigError, match=r"`--out` .*a/b is in no folder: .*a is missing"):
        check_output("--out", tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"`-o` must name a folder, .*file is a file"):
        check_output_folder("-o", tmp_path / "file" / "a" / "b")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ConfigError, match=r"`--out` .*/x cannot be written; name another file"):
        check_output("--out", tmp_path / "x")
    with pytest.raises(ConfigError, match=r"`-o` .*/a/b cannot be written; name another folder"):
        check_output_folder("-o", tmp_path / "a" / "b")


def test_a_picture_has_a_known_format(tmp_path: Path) -> None:
    check_picture("--png", None)
    check_picture("--png", tmp_path / "a.PNG")
    with pytest.raises(ConfigError, match=r"`--png` must end in .*a\.xyz; choose from \.png"):
        check_picture("--png", tmp_path / "a.xyz")
