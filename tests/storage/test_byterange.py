"""Byte ranges: exact reads, files that are none, and files that change while they are read."""

from __future__ import annotations

import os
import socket

import pytest

from ckptctl.errors import ChangedError, UnreadableError
from ckptctl.storage import LocalFile, MemoryFile


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    return LocalFile(path)


def test_reads_exactly_what_is_asked(file):
    part = file.range().sub(10, 20)
    assert part.read() == bytes(range(10, 30))
    assert part.read(5, 3) == bytes(range(15, 18))
    assert part.sub(5, 10).read() == bytes(range(15, 25))
    assert part.head(1000) == part.read()
    assert part.sub(20, 0).read() == b""


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 21), (21, 0), (0, -1), (20, 1)])
def test_never_leaves_its_bounds(file, offset, length):
    part = file.range().sub(10, 20)
    with pytest.raises(ValueError, match="outside a range of 20 bytes"):
        part.read(offset, length)
    with pytest.raises(ValueError, match="outside a range of 20 bytes"):
        part.sub(offset, length)


def test_memory_reads_like_a_file(tmp_path):
    part = MemoryFile(b"abcdef", path=tmp_path).range().sub(1, 4)
    assert (part.read(), part.read(1, 2)) == (b"bcde", b"cd")


def test_a_file_that_shrinks_is_an_error_not_a_short_read(file):
    os.truncate(file.path, 50)
    with pytest.raises(ChangedError, match="became shorter"):
        file.range().read()


@pytest.mark.parametrize("change", ["append", "replace", "touch"])
def test_a_change_is_noticed_when_the_file_is_released_or_opened_again(file, change):
    file.range().read()
    match change:
        case "append":
            with file.path.open("ab") as f:
                f.write(b"more")
        case "replace":
            other = file.path.with_name("y")
            other.write_bytes(bytes(range(100)))
            file.release()
            os.replace(other, file.path)
        case "touch":
            os.utime(file.path, ns=(1, 1))
    with pytest.raises(ChangedError, match="changed while"):
        file.release()
        file.range().read()


def test_an_unchanged_file_can_be_opened_again(file):
    file.release()
    file.release()
    assert file.range().read(0, 1) == b"\0"


def missing(path):
    return path / "nothing"


def directory(path):
    return path


def fifo(path):
    os.mkfifo(path / "fifo")
    return path / "fifo"


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        os.chdir(path)
        s.bind("sock")
    return path / "sock"


def loop(path):
    (path / "a").symlink_to("b")
    (path / "b").symlink_to("a")
    return path / "a"


def below_a_file(path):
    (path / "f").write_bytes(b"")
    return path / "f" / "x"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (missing, "no such file"), (directory, "a directory, not a file"), (fifo, "a named pipe"),
        (unix_socket, "socket"), (loop, "a loop of symbolic links"), (below_a_file, "not a directory"),
        (lambda p: p / ("n" * 300), "too long"), (lambda p: p / "a\0b", "not a possible path"),
        (lambda p: __import__("pathlib").Path("/dev/null"), "a character device"),
    ],
    ids=["missing", "directory", "fifo", "socket", "loop", "below a file", "long", "NUL", "device"],
)  # fmt: skip
def test_says_what_stands_in_the_way(tmp_path, monkeypatch, make, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableError) as caught:
        LocalFile(make(tmp_path))
    assert words in caught.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_says_that_permission_is_denied(file):
    file.path.chmod(0)
    with pytest.raises(UnreadableError, match="permission denied"):
        LocalFile(file.path)


def test_no_handle_is_left_open(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    before = len(os.listdir("/dev/fd"))
    for _ in range(50):
        LocalFile(tmp_path / "x").range().read()
    assert len(os.listdir("/dev/fd")) <= before + 1
