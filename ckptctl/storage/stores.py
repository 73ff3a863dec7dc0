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

from ckptctl.errors import MissingExtraError, UnreadableError
from ckptctl.storage.daemons import Daemons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptctl.storage.remote import RemotePath

T = TypeVar("T")
SCHEMES = ("s3", "gs", "az", "http", "https", "hf")
_TRIES, _FIRST_PAUSE = 4, 0.2
_REVISION = "main"
HUB = "https://huggingface.co"
_STATUS = re.compile(r"status code: ([0-9]{3} [A-Za-z ]+)")
_WHY = re.compile(r" - (?:HTTP error: )?([^\n:<]{3,120})")
_waiting = Daemons(2, "ckptctl-ask")
_stores: dict[tuple[str, str], Any] = {}


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
            if "status code: 404" in str(error):
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
            return kinds.S3Store(bucket, **options, **_credentials(), **_checksums())
        case "gs":
            return kinds.GCSStore(bucket, **options)
        case "az":
            return kinds.AzureStore(bucket, **options)
        case "hf":
            return kinds.HTTPStore.from_url(os.environ.get("HF_ENDPOINT", HUB), **options)
    return kinds.HTTPStore.from_url(f"{scheme}://{bucket}", **options)


def _client_module(name: str) -> Any:
    try:
        return import_module(f"obstore.{name}")
    except ImportError:
        raise MissingExtraError("obstore is not installed", hint="pip install 'ckptctl[cloud]'") from None


def _client(scheme: str) -> dict[str, Any]:
    found: dict[str, Any] = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
    names = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "hf": ("HF_ENDPOINT",)}.get(scheme, ())
    plain = any(os.environ.get(name, "").startswith("http://") for name in names)
    if plain or scheme == "http":
        found["allow_http"] = True
    token = hub_token() if scheme == "hf" else ""
    if token:
        found["default_headers"] = {"authorization": f"Bearer {token}"}
    return found


def _retries() -> dict[str, Any]:
    return {"max_retries": 5, "retry_timeout": timedelta(seconds=120)}


def _checksums() -> dict[str, Any]:
    """Have Amazon check each part that is sent by its SHA-256; other servers only where the environment says so."""
    own = ("AWS_CHECKSUM_ALGORITHM", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return {} if any(os.environ.get(name) for name in own) else {"checksum_algorithm": "SHA256"}


def _credentials() -> dict[str, Any]:
    """Return what boto3 finds in its files and profiles, where the environment itself has no keys for the store."""
    found: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3", "")
    if endpoint:
        found["endpoint"] = endpoint
    container = "AWS_CONTAINER_CREDENTIALS_"
    own = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE", f"{container}FULL_URI",
           f"{container}RELATIVE_URI")  # fmt: skip
    if any(name in os.environ for name in own):
        return found
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  # another one

        return {**found, "credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError, TypeError):  # no boto3, or it knows none either: the machine's own role, perhaps
        return found


def hub_parts(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return where the Hub serves a file: ``owner``, ``model``, ``resolve``, the revision, and what follows."""
    owner, model, *rest = parts
    model, _, revision = model.partition("@")
    return (owner, model, "resolve", revision or _REVISION, *rest)


def hub_token() -> str:
    """Return the token for the Hugging Face Hub that the environment or its own file gives; empty if there is none."""
    if os.environ.get("HF_TOKEN"):
        return os.environ["HF_TOKEN"]
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    try:
        return (home / "token").read_text().strip()
    except OSError:
        return ""
