"""Object stores for tests: in memory, watched, slow or failing; and servers on this machine."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, unquote

import obstore
from obstore.store import MemoryStore

from ckptctl.storage.remote import forget
from ckptctl.storage.stores import transferred, use


class Watched:
    """A store in memory. `calls` is what it was asked for; `before` may wait, or raise, at each call."""

    def __init__(self, before: Callable[[str, tuple, dict], None] | None = None) -> None:
        self.store = MemoryStore()
        self.calls: list[tuple[str, tuple, dict]] = []
        self.before = before

    def __getattr__(self, name):
        ask = getattr(self.store, name)

        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            if self.before:
                self.before(name, arguments, options)
            return ask(*arguments, **options)

        return call

    def fill(self, directory: Path, prefix: str = "") -> None:
        """Take all files of a directory, under their names."""
        for path in sorted(directory.rglob("*"), key=lambda one: (one.stat().st_mtime_ns, one)):
            if path.is_file():
                obstore.put(self.store, prefix + path.relative_to(directory).as_posix(), path.read_bytes())

    @property
    def keys(self) -> set[str]:
        return {one["path"] for batch in obstore.list(self.store) for one in batch}

    def read(self, key: str) -> bytes:
        return bytes(obstore.get(self.store, key).bytes())


class Aged(Watched):
    """A store in memory whose objects are as old as the files that they were filled from."""

    def __init__(self, before=None) -> None:
        super().__init__(before)
        self.times: dict[str, tuple[str, datetime]] = {}

    def fill(self, directory: Path, prefix: str = "") -> None:
        super().fill(directory, prefix)
        for path in directory.rglob("*"):
            if path.is_file():
                key = prefix + path.relative_to(directory).as_posix()
                when = datetime.fromtimestamp(path.stat().st_mtime, tz=timezone.utc)
                self.times[key] = obstore.head(self.store, key)["e_tag"], when

    def aged(self, one):
        tag, when = self.times.get(one["path"], ("", None))
        return {**one, "last_modified": when} if tag == one["e_tag"] else one

    def list(self, *arguments, **options):
        for batch in self.__getattr__("list")(*arguments, **options):
            yield [self.aged(one) for one in batch]

    def list_with_delimiter(self, *arguments):
        found = self.__getattr__("list_with_delimiter")(*arguments)
        return {**found, "objects": [self.aged(one) for one in found["objects"]]}

    def head(self, key):
        return self.aged(self.__getattr__("head")(key))

    def get(self, key, **options):
        found = self.__getattr__("get")(key, **options)
        return SimpleNamespace(meta=self.aged(found.meta), bytes=found.bytes)


def bucket(name: str, before: Callable[[str, tuple, dict], None] | None = None, *, aged: bool = False) -> Watched:
    """A new store behind ``s3://NAME``, whose objects are new or as old as their files."""
    store = Aged(before) if aged else Watched(before)
    use("s3", name, store)
    start()
    return store


def start() -> None:
    """Forget what was seen of stores, and how often they were asked."""
    forget()
    transferred.requests = transferred.nbytes = 0


class _Files(http.server.BaseHTTPRequestHandler):
    """Serves the files of a directory with ranges; as the Hub, if asked as that. `seen` are the headers."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        path = unquote(self.path.partition("?")[0]).lstrip("/")
        if path.startswith("api/models/"):
            _, _, owner, model, _, revision, *rest = path.split("/")
            self.tree("/".join((owner, model, revision, *rest)))
            return
        parts = path.split("/")
        if len(parts) > 3 and parts[2] == "resolve":
            path = "/".join((*parts[:2], *parts[3:]))
        file = self.server.root / path
        if not file.is_file():
            self.send_error(404)
            return
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.send_error(401)
            return
        time.sleep(self.server.stall)
        if self.server.errors and self.command == "GET":
            self.server.errors -= 1
            self.send_error(503)
            return
        data, status = file.read_bytes(), 200
        size, start, end = len(data), 0, len(data)
        if self.headers.get("Range"):
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(int(last) + 1, size), 206
            if start >= size:
                self.send_error(416)
                return
        self.send_response(status)
        if self.server.tags:
            self.send_header("ETag", f'"{hash(data) & 0xFFFFFFFF:x}"')
        self.send_header("Last-Modified", self.server.modified)
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - start))
        trouble = next(self.server.trouble, "") if body else ""
        self.end_headers()
        if trouble == "cut":  # the connection ends in the middle of what was promised
            self.wfile.write(data[start : (start + end) // 2])
            self.close_connection = True
            return
        if trouble == "slow":
            time.sleep(0.3)
        if body:
            self.wfile.write(data[start:end])

    def tree(self, path):
        directory = self.server.root / path
        if not directory.is_dir():
            self.send_error(404)
            return
        base = len(Path(path).parts) - 3
        found = [
            {"type": "directory" if one.is_dir() else "file", "size": one.stat().st_size, "oid": "0" * 40,
             "path": "/".join(one.parts[len(one.parts) - base - 1 :])} for one in sorted(directory.iterdir())
        ]  # fmt: skip
        for one in found:
            digest = self.server.digests.get(one["path"])
            one |= {"lfs": {"oid": digest, "size": one["size"], "pointerSize": 130}} if digest else {}
        first = int(dict(parse_qsl(self.path.partition("?")[2])).get("cursor", 0))
        after = first + self.server.page
        text = json.dumps(found[first:after]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.send_header("ETag", '"x"')
        if after < len(found):
            self.send_header(
                "Link",
                f'<{self.server.next or self.server.url}{self.path.partition("?")[0]}?cursor={after}>; rel="next"',
            )
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def served(root: Path, token: str = "") -> Iterator[http.server.ThreadingHTTPServer]:
    """A web server of a directory; `server.url` is its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    server.root, server.token, server.seen = root, token, []
    server.trouble, server.errors, server.stall = iter(()), 0, 0.0
    server.page, server.next, server.digests = 1000, "", {}
    server.tags, server.modified = True, "Wed, 01 Jan 2025 00:00:00 GMT"
    server.handle_error = lambda *_: None  # a client that has gone is no error of the test
    server.daemon_threads, server.block_on_close = True, False
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slow(seconds: float) -> Callable[[str, tuple, dict], None]:
    return lambda *_: time.sleep(seconds)
