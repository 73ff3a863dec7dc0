"""Texts that are addresses in stores."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ckptctl.errors import UsageError
from ckptctl.storage.remote import RemotePath
from ckptctl.storage.stores import SCHEMES

_WEB = ("http", "https")
_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)}|file):/+", re.IGNORECASE)


def parsed(raw: str) -> Path:
    """Return the path that a text is: on disk, or in a store.

    Raises
    ------
    UsageError
        It is an address without a bucket or server.
    """
    found = _ADDRESS.match(raw)
    if not found:
        return Path(raw)
    scheme = found[1].lower()
    if scheme == "file":
        return Path(unquote(urlsplit(raw).path))
    rest = raw[found.end() :]
    secret = "@" in rest.partition("/")[0] and scheme != "hf"
    if secret or (scheme in _WEB and "?" in rest):
        raise UsageError(
            f"{scheme}://…: an address with a query or a password in it is not taken",
            hint="download it first" if scheme in _WEB else "keys belong into the environment, or into a profile",
        )
    if ".." in rest.split("/"):
        raise UsageError(f"{raw}: an address has no way up")
    path = RemotePath(f"{scheme}:/{rest}")
    if len(path.parts) < (3 if scheme == "hf" else 2):
        raise UsageError(f"{raw}: an address has a bucket, a server or a repository", hint="s3://bucket/run/step_100")
    return path
