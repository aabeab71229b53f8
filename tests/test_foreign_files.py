"""Files of strangers: whatever they hold, a reader answers in one line, and nothing waits.

The law tries `JAXPIPE_MUTATIONS` mutations of a file for each reader, by default 100 of each.
"""

import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.errors import ConfigError, UserError
from jaxpipe.foreign_file import (
    MOST_DEPTH,
    decode_text,
    open_regular,
    parse_json,
    parse_number_json,
    read_lines,
    read_regular,
)
from jaxpipe.run.folder.list_runs import runs_in
from jaxpipe.run.folder.prepare_run import check_entries
from tests.foreign_readers import METRICS, READERS, ForeignReader

MUTATIONS = int(os.environ.get("JAXPIPE_MUTATIONS", "100"))
NASTY = (
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\0",
    b"}",
    b'"',
    b"\n",
    b"\r",
    b",",
    b"=",
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"9" * 5000,
    b'"\\ud800"',
    b"true",
    b"{}",
    b"[]",
    b'""',
    b"\x1b[2J",
    "\u2028".encode(),
    b"../../etc/passwd",
)


def reads(reader: ForeignReader, folder: Path) -> None:
    """Read; only errors with a message for the user may come out."""
    try:
        reader.read(folder)
    except UserError:
        pass
    except ValueError as error:
        # Of `topo`, which `config` translates.
        if type(error) is not ValueError or reader.file not in ("c.toml", "hosts"):
            raise


@pytest.mark.parametrize("name", READERS)
def test_a_reader_accepts_its_file(name: str, tmp_path: Path) -> None:
    READERS[name].write(tmp_path)
    assert (tmp_path / READERS[name].file).is_file()
    if name not in ("adopted plan", "imported model", "strategy", "duplex", "plan"):
        READERS[name].read(tmp_path)


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Change one to three spans: to one of NASTY, to random bytes, to nothing, or to a copy."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from((0, 0, 1, 1, 2, 5, 20, 10**6))))
        span = content[start:end]
        other = draw(
            st.sampled_from(NASTY) | st.binary(max_size=4) | st.just(b"") | st.just(2 * span)
        )
        content = content[:start] + other + content[end:]
    return content


@pytest.mark.parametrize("name", READERS)
def test_whatever_a_file_holds_its_reader_answers(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader, original = READERS[name], tmp_path_factory.mktemp("original")
    reader.write(original)
    content = (original / reader.file).read_bytes()

    @settings(
        max_examples=MUTATIONS,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(mutated(content))
    def law(changed: bytes) -> None:
        (original / reader.file).write_bytes(changed)
        reads(reader, original)

    law()


def _specials(path: Path) -> Iterator[str]:
    """Put things that are no file, or not here, in the place of a file, one after the other."""
    os.mkfifo(path)
    yield "pipe"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))
        yield "socket"
    path.unlink()
    path.mkdir()
    yield "folder"
    path.rmdir()
    for target in ("/dev/zero", "/dev/tty", path.name, "/proc/self/mem", "missing"):
        path.symlink_to(target)
        yield target
        path.unlink()
    with path.open("wb") as file:
        file.truncate(2**43)  # of which nothing is on the disk
    yield "8 TiB"
    path.unlink()
    path.touch()
    yield "nothing"
    path.unlink()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.timeout(60)
def test_what_is_no_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    reader.write(tmp_path)
    (tmp_path / reader.file).unlink()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = name in ("text", "records", "labelled text", "resumed metrics")
    for kind in _specials(tmp_path / reader.file):
        if kind == "8 TiB" and large:  # sources of any size are read in pieces
            continue
        reads(reader, tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 200_000  # KiB


def test_links_of_a_stranger_stay_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("1")
    (tmp_path / "run" / "file").write_text("2")
    (tmp_path / "run" / "in").symlink_to("file")
    (tmp_path / "run" / "out").symlink_to("../secret")
    (tmp_path / "moved").symlink_to("run")
    for folder in ("run", "moved"):
        assert read_regular(tmp_path / folder / "in", most_bytes=9, inside=True) == b"2"
        with pytest.raises(OSError, match="leads out of its folder"):
            read_regular(tmp_path / folder / "out", most_bytes=9, inside=True)
    assert read_regular(tmp_path / "run" / "out", most_bytes=9) == b"1"


def test_a_run_writes_through_no_link_and_into_no_pipe(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "step-1").symlink_to(tmp_path)  # checkpoints on a larger disk are fine
    (run / "file").touch()
    (run / "link").symlink_to("file")
    check_entries(run)
    check_entries(tmp_path / "missing")
    (tmp_path / "mine").touch()
    (run / "run.toml").symlink_to("../mine")
    with pytest.raises(ConfigError, match=r"run\.toml: it is a link that leads out of its folder"):
        check_entries(run)
    (run / "run.toml").unlink()
    os.mkfifo(run / "metrics.tmp")
    with pytest.raises(ConfigError, match=r"metrics\.tmp is neither; remove it"):
        check_entries(run)


def test_one_bad_run_hides_no_other(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "metrics.jsonl").write_text(METRICS)
    os.mkfifo(tmp_path / "b" / "metrics.jsonl")
    (tmp_path / "c" / "metrics.jsonl").write_text("[" * 3000 + "\n" + METRICS)
    good, bad, damaged = runs_in(tmp_path)
    assert bad.state.startswith("cannot be read: `metrics.jsonl`")
    assert "it is not a regular file" in bad.state
    assert (good.last_step, good.num_steps) == (damaged.last_step, damaged.num_steps) == (2, 3)


def test_damaged_lines_are_counted_and_half_of_the_last_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(METRICS + '{"step": 3, "lo')
    runs_in(tmp_path)
    assert not caplog.messages
    lines = METRICS.splitlines()
    path.write_text("\n".join((lines[0], '{"step": "x"}', *lines[1:])) + "\n")
    (run,) = runs_in(tmp_path)
    assert run.last_step == 2
    (message,) = caplog.messages
    assert "damaged lines, which are passed over: 1, the first in line 2: Expected `int`" in message


@pytest.mark.parametrize("parse", [parse_json, parse_number_json])
def test_depth_is_bounded_as_written(parse: Callable[[str], object]) -> None:
    assert parse("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    for depth in (MOST_DEPTH + 1, 900, 100_000):
        with pytest.raises(ValueError, match="nested more than 100 deep"):
            parse("[" * depth + "]" * depth)


def test_marks_before_a_text_are_understood_or_named() -> None:
    assert decode_text("é".encode("utf-8-sig")) == "é"
    for other in ("utf-16", "utf-16-le", "utf-16-be"):
        content = ("" if other == "utf-16" else "\ufeff").encode(other) + "a".encode(other)
        with pytest.raises(ValueError, match="it is UTF-16; save the file as UTF-8"):
            decode_text(content)


def test_lines_are_read_as_a_stream_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxpipe.foreign_file.MOST_LINE_BYTES", 3)
    (tmp_path / "a").write_bytes(b"abc\nab\r\n\nabc")
    assert list(read_lines(tmp_path / "a", most_bytes=99)) == [b"abc\n", b"ab\r\n", b"\n", b"abc"]


def test_a_device_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/null"))
    with pytest.raises(OSError, match="not the name of a file"):
        open_regular(Path("a\0b"))
