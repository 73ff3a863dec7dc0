"""Send what is held of a checkpoint: data first, each object compared with what was sent, the digests last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptctl.checks.digests import SUMS
from ckptctl.errors import ChangedError, CorruptError, ExistsError, UnreadableError
from ckptctl.runs.pending import CONFIRMED
from ckptctl.storage import LocalFile, has_file, is_remote, open_file, unreadable
from ckptctl.storage.atomic import Staged, flush_directory, staged_for, write_small
from ckptctl.storage.daemons import in_daemon
from ckptctl.storage.digest import sha256_of, sidecar_line, sidecar_of
from ckptctl.storage.set_aside import LAST_WRITTEN, stored_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ckptctl.runs.pending import Pending, PendingFile
    from ckptctl.storage.upload import Upload

_BLOCK = 4 << 20
_OWN_NAME = "give each checkpoint a name of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A file that is at its destination: where, how many bytes, their SHA-256, the tag that a store gave it."""

    to: str
    name: str
    size: int
    sha256: str
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A checkpoint that is at its destination: where, how many bytes it is, the SHA-256 of each file by its name."""

    path: Path
    nbytes: int
    digests: dict[str, str]


def send(pending: Pending, to: Path, *, at_once: int = 2) -> Uploaded:
    """Send a checkpoint. What of it was sent before, and is still there as it was, is not sent again.

    Raises
    ------
    ExistsError
        Something else is there already.
    ChangedError, CorruptError
        What is held is not what was saved: it was written over in place, or its digest is another.
    UnreadableError
        The store cannot be asked, or the file system says no; to be tried again.
    """
    try:
        return _sent(pending, to, at_once)
    except PermissionError as error:
        raise unreadable(to, error) from None
    except OSError as error:
        raise UnreadableError(f"{to}: {error.strerror or error}") from error


def _sent(pending: Pending, to: Path, at_once: int) -> Uploaded:
    root = to / pending.name
    before = {one.name: one for one in _confirmed(pending) if one.to == str(to)}
    foreign = sorted(_there(root) - {one.name for one in pending.files} - {f"{pending.name}/{SUMS}"})
    if pending.directory and foreign:
        raise ExistsError(
            f"{root}: something else is there already ({foreign[0]})", hint="upload it under another name"
        )
    done: dict[str, Sent] = {}
    with (pending.entry / CONFIRMED).open("ab") as log:

        def one(file: PendingFile) -> None:
            known = before.get(file.name)
            if known is None or not _is_there(to / file.name, known):
                known = _one(pending, file, to)
                log.write(json.dumps(asdict(known)).encode() + b"\n")
                log.flush()
            done[file.name] = known

        for files in _in_order(pending):  # what makes it whole waits for all the rest
            for start in range(0, len(files), at_once):
                _all_of([partial(one, file) for file in files[start : start + at_once]])
    digests = {name: done[name].sha256 for name in sorted(done)}
    _seal(pending, root, digests)
    return Uploaded(path=root, nbytes=sum(one.size for one in done.values()), digests=digests)


def _all_of(calls: list[Callable[[], None]]) -> None:
    """Do some things side by side, in threads that the end of the program does not wait for; none is left behind."""
    waiting = [in_daemon(call, "ckptctl-send") for call in calls]
    errors = [one.exception() for one in waiting]
    for error in errors:
        if error:
            raise error


def _in_order(pending: Pending) -> Iterator[list[PendingFile]]:
    last = [one for one in pending.files if LAST_WRITTEN.fullmatch(one.name.rpartition("/")[2])]
    yield [one for one in pending.files if one not in last]
    yield last


def _one(pending: Pending, file: PendingFile, to: Path) -> Sent:
    """Send a file, and make sure that what is there now is what was saved."""
    target = to / file.name
    if not is_remote(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    _check_held(pending.source(file), file)
    source = LocalFile(pending.source(file))
    if has_file(target):
        return _the_same(source, target, file, to)  # or somebody else's
    with staged_for(target, force=False, nbytes=file.size) as place:
        digest, tags = _poured(source, place, file.size)
        _check_held(source.path, file)
        if file.sha256 and digest != file.sha256:
            raise CorruptError(f"{source.path}: its SHA-256 is not the one on record; it is not uploaded")
        place.publish()
    tag = "" if isinstance(place, Staged) else place.tag
    if isinstance(place, Staged):
        flush_directory(target.parent)
    if tag not in tags and _digest(target) != digest:
        raise ChangedError(f"{target}: what is there is not what was sent")
    return Sent(to=str(to), name=file.name, size=file.size, sha256=digest, tag=tag)


def _the_same(source: LocalFile, target: Path, file: PendingFile, to: Path) -> Sent:
    """Take what is there for what was sent before a crash, if it is that byte by byte."""
    there: Any = open_file(target, anew=True)
    digest = _digest(source.path)
    if there.size != file.size or digest != (file.sha256 or digest) or _digest(target) != digest:
        raise ExistsError(f"{target}: exists already, and is something else", hint=_OWN_NAME)
    return Sent(to=str(to), name=file.name, size=file.size, sha256=digest, tag=getattr(there, "tag", ""))


def _check_held(path: Path, file: PendingFile) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise ChangedError(f"{path}: it is gone, and was to be uploaded", hint=_OWN_NAME) from None
    if (found.st_size, found.st_mtime_ns) != (file.size, file.mtime_ns):
        raise ChangedError(
            f"{path}: it was written over in place while it waited to be uploaded: it is not what was saved",
            hint=_OWN_NAME,
        )


def _poured(source: LocalFile, place: Staged | Upload, nbytes: int) -> tuple[str, tuple[str, ...]]:
    """Write all bytes; return their SHA-256, and the tags that S3 gives an object of these parts."""
    part = place.part if not isinstance(place, Staged) else 0
    whole, parts, current, left = hashlib.sha256(), [], hashlib.md5(usedforsecurity=False), part
    buffer, at = memoryview(bytearray(_BLOCK)), 0
    while at < nbytes and (count := source.pread_into(buffer, at)):
        view = buffer[:count]
        whole.update(view)
        for start, end in _cut(count, left, part):
            current.update(view[start:end])
            left -= end - start
            if part and not left:
                parts.append(current.digest())
                current, left = hashlib.md5(usedforsecurity=False), part
        _write(place, view)
        at += count
    source.release()
    if isinstance(place, Staged):
        os.fsync(place.fd)
        return whole.hexdigest(), ()
    if left < part or not parts:
        parts.append(current.digest())
    joined = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return whole.hexdigest(), (f"{joined}-{len(parts)}", *([parts[0].hex()] if len(parts) == 1 else []))


def _cut(count: int, left: int, part: int) -> Iterator[tuple[int, int]]:
    """Cut a block where one part of an object ends and the next begins."""
    start = 0
    while part and start < count:
        end = min(start + left, count)
        yield start, end
        left = part if end - start == left else left - (end - start)
        start = end


def _write(place: Staged | Upload, view: memoryview) -> None:
    if not isinstance(place, Staged):
        place.write(view)
        return
    while view:
        view = view[os.write(place.fd, view) :]


def _digest(path: Path) -> str:
    return sha256_of(open_file(path, anew=True))


def _confirmed(pending: Pending) -> Iterator[Sent]:
    """Yield what is known to be there; a line that was cut by a crash counts for nothing."""
    path = pending.entry / CONFIRMED
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, TypeError):
            yield Sent(**json.loads(line))


def _is_there(target: Path, known: Sent) -> bool:
    """Whether what was sent before is still there as it was."""
    try:
        if not is_remote(target):
            return target.stat().st_size == known.size and _digest(target) == known.sha256
        found: Any = open_file(target, window=1, anew=True)
    except (OSError, UnreadableError):
        return False
    return bool(known.tag) and (found.size, found.tag) == (known.size, known.tag)


def _there(root: Path) -> set[str]:
    """Return the names of all that is at a destination, as the files of a run have them."""
    if is_remote(root):
        return {one.name for one in stored_below(root.parent, root.name)}  # type: ignore[arg-type]  # it is remote
    every = [root, *root.rglob("*")] if root.is_dir() else [root]
    return {
        one.relative_to(root.parent).as_posix()
        for one in every
        if one.is_file() and not one.name.endswith(".ckptctl-tmp")
    }


def _seal(pending: Pending, root: Path, digests: dict[str, str]) -> None:
    """Write the digests, which say that all is there, only where there are none yet."""
    if pending.directory:
        target = root / SUMS
        names = {name: name.removeprefix(f"{pending.name}/") for name in digests}
    else:
        target, names = sidecar_of(root), {name: name for name in digests}
    data = b"".join(sidecar_line(digests[name], short) for name, short in sorted(names.items()))
    try:
        if is_remote(target):
            write_small(target, data, create=True)
        else:
            with Staged(target, force=False) as staged:
                os.write(staged.fd, data)
                os.fsync(staged.fd)
                staged.publish()
            flush_directory(target.parent)
    except ExistsError:
        file = open_file(target, anew=True)
        if file.range().read() != data:
            raise ExistsError(
                f"{root}: it was uploaded before, and was another one", hint="give it another name"
            ) from None
