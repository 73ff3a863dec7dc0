"""Object stores: one for each bucket or server, what was asked of them, and their errors in plain words.

obstore is the client. Credentials, endpoints and regions are what it, or boto3 where that is installed, finds in the
environment, as the vendors' own tools do; they are never printed.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ckptctl.errors import MissingExtraError, UnreadableError, UsageError
from ckptctl.storage.amazon import checksums, credentials, stated_endpoint
from ckptctl.storage.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptctl.storage.remote import RemotePath

T = TypeVar("T")
SCHEMES = ("s3", "gs", "az", "http", "https", "hf")
_TRIES, _FIRST_PAUSE = 4, 0.2
_REVISION = "main"
HUB = "https://huggingface.co"
_ABSENT = ("status code: 404", "Not a directory (os error 20)")
"""How servers, and a store of local files, say that there is no such object."""
_STATUS = re.compile(r"status code: ([0-9]{3} [A-Za-z ]+)")
_WHY = re.compile(r" - (?:HTTP error: )?([^\n:<]{3,120})")
_waiting = Daemons(2, "ckptctl-ask")
_stores: dict[tuple[str, str], Any] = {}
_making, _importing = threading.Lock(), threading.Lock()


@dataclass(slots=True)
class Transferred:
    """How often object stores were asked, and how many bytes they sent, in this process."""

    requests: int = 0
    nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, nbytes: int = 0) -> None:
        """Count one more request, or so many more bytes."""
        with self._lock:
            self.requests += not nbytes
            self.nbytes += nbytes


transferred = Transferred()


_versioned: set[tuple[str, str]] = set()


def note_version(path: RemotePath, meta: Mapping[str, Any]) -> None:
    """Remember that a bucket keeps versions, if what it says of an object tells. Only S3 says so to anybody."""
    if path.scheme == "s3" and meta.get("version") not in (None, "null"):
        _versioned.add((path.scheme, path.bucket))


def tag_of(meta: Mapping[str, Any]) -> str:
    """Return what a store calls the content of an object, the same in a listing and in an answer: without quotes."""
    return str(meta["e_tag"] or "").removeprefix("W/").strip('"')


def keeps_versions(scheme: str, bucket: str) -> bool:
    """Whether a bucket is known to keep what is deleted."""
    return (scheme, bucket) in _versioned


def store_of(scheme: str, bucket: str) -> Any:
    """Return the store of a bucket, container or server, made on first use.

    Raises
    ------
    MissingExtraError
        obstore is not installed.
    """
    key = scheme, bucket
    with _making:
        if key not in _stores:
            _stores[key] = _made(scheme, bucket)
        return _stores[key]


def use(scheme: str, bucket: str, store: Any) -> None:
    """Take a store of obstore for all addresses of a bucket: one that needs more than the environment says."""
    _stores[scheme, bucket] = store


def asked(path: object, call: Callable[[], T], *, tries: int = _TRIES) -> T:
    """Ask a store for something; again, after a while, where it broke off.

    Raises
    ------
    OSError
        There is no such object, or it may not be read.
    UnreadableError
        The store cannot be asked; the message says why.
    """
    if threading.current_thread() is threading.main_thread():  # which Ctrl-C is to end while a store says nothing
        return _waiting.submit(partial(_asked, path, call, tries)).result()
    return _asked(path, call, tries)


def broken_off() -> Exception:
    """Return the error for an answer that is shorter than what was asked for; such a question is asked again."""
    error: Exception = _client_module("exceptions").GenericError("the answer is shorter than it should be")
    return error


def _asked(path: object, call: Callable[[], T], tries: int) -> T:
    failed = _client_module("exceptions")
    for attempt in range(tries):
        transferred.note()
        try:
            return call()
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        except (failed.PermissionDeniedError, failed.UnauthenticatedError, PermissionError):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
        except (failed.AlreadyExistsError, failed.PreconditionError):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        except failed.GenericError as error:
            if any(absent in str(error) for absent in _ABSENT):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
            if attempt == tries - 1 or _is_final(error):
                raise UnreadableError(f"{path}: {_plain(error)}") from None
            time.sleep(_FIRST_PAUSE * 4**attempt)
        except failed.BaseError as error:
            raise UnreadableError(f"{path}: {_plain(error)}") from None
    raise AssertionError("the last attempt returns or raises")


def _is_final(error: Exception) -> bool:
    """Whether asking again is of no use: the server has understood, and said no."""
    found = _STATUS.search(str(error))
    return bool(found and found[1].startswith("4"))


def _plain(error: Exception) -> str:
    """Return why a store failed without addresses, which may hold secrets."""
    text = str(error).partition("\nDebug source")[0]
    status, why = _STATUS.search(text), _WHY.search(text)
    if status:
        return f"the store answers {status[1].strip()}"
    if why:
        return f"the store cannot be reached ({why[1].strip()})"
    return f"the store cannot be asked ({re.sub(r'[a-z]+://[^ )]+', '…', text)[:200].strip()})"


def _made(scheme: str, bucket: str) -> Any:
    kinds = _client_module("store")
    options: dict[str, Any] = {"client_options": _client(scheme), "retry_config": _retries()}
    match scheme:
        case "s3":
            found = credentials()
            endpoint = found.get("endpoint", "")
            if endpoint.startswith("http://"):
                options["client_options"]["allow_http"] = True
            return kinds.S3Store(bucket, **options, **found, **checksums(endpoint))
        case "gs":
            return kinds.GCSStore(bucket, **options)
        case "az":
            return kinds.AzureStore(bucket, **options, **_azure())
        case "hf":
            return kinds.HTTPStore.from_url(hub_endpoint(), **options)
    return kinds.HTTPStore.from_url(f"{scheme}://{bucket}", **options)


def _client_module(name: str) -> Any:
    try:
        with _importing:  # of many threads that import it at once, one may see a half of it
            import_module("obstore")
            return import_module(f"obstore.{name}")
    except ImportError:
        raise MissingExtraError("obstore is not installed", hint="pip install 'ckptctl[cloud]'") from None


def _client(scheme: str) -> dict[str, Any]:
    found: dict[str, Any] = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
    to = {"s3": stated_endpoint, "hf": hub_endpoint}.get(scheme, lambda: f"{scheme}://")()
    if to.startswith("http://"):
        found["allow_http"] = True
    token = hub_token() if scheme == "hf" else ""
    if token:
        found["default_headers"] = {"authorization": f"Bearer {token}"}
    return found


def _retries() -> dict[str, Any]:
    return {"max_retries": 5, "retry_timeout": timedelta(seconds=120)}


def _azure() -> dict[str, str]:
    """Return what the tools of Azure itself read, where the client knows other names for it."""
    names = {"account_name": "AZURE_STORAGE_ACCOUNT", "account_key": "AZURE_STORAGE_KEY"}
    return {
        option: os.environ[name]
        for option, name in names.items()
        if os.environ.get(name) and not os.environ.get(f"AZURE_STORAGE_{option.upper()}")
    }


def hub_parts(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return where the Hub serves a file: ``owner``, ``model``, ``resolve``, the revision, and what follows."""
    owner, model, *rest = parts
    model, _, revision = model.partition("@")
    return (owner, model, "resolve", revision or _REVISION, *rest)


def hub_endpoint() -> str:
    """Return the address of the Hugging Face Hub, or of what stands in for it.

    Raises
    ------
    UsageError
        ``HF_ENDPOINT`` is no address.
    """
    found = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or HUB
    if not re.match(r"https?://[^/\s@]+(/|$)", found):
        raise UsageError("HF_ENDPOINT is no address of a server", hint="HF_ENDPOINT=https://huggingface.co")
    return found


def hub_token() -> str:
    """Return the token for the Hugging Face Hub that the environment or its own file gives; empty if there is none."""
    found = os.environ.get("HF_TOKEN", "").strip()
    if not found:
        home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        try:
            found = (home / "token").read_text().strip()
        except (OSError, ValueError):
            return ""
    if not found.isascii() or not found.isprintable():
        raise UsageError("the token for the Hugging Face Hub is no text for a header", hint="look at HF_TOKEN")
    return found
