"""What the Hugging Face Hub lists: page after page, each naming the next one in a header."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ckptctl.errors import UnreadableError
from ckptctl.storage.stores import hub_endpoint, hub_parts, hub_token, transferred

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from typing import IO

    from ckptctl.storage.remote import RemotePath

_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_TRIES, _PAUSE, _TIMEOUT = 4, 0.2, 60.0
_MOST_PAGES = 1000


def listed_by_the_hub(path: RemotePath) -> list[dict[str, Any]]:
    """Return what the Hub says of a directory: ``path``, ``type``, ``size`` and ``sha256`` of each entry.

    Only of large files does it know a digest; of others that is empty.

    Raises
    ------
    OSError
        It may not be looked at.
    UnreadableError
        The Hub cannot be asked; the message says why.
    """
    owner, model, _, revision, *rest = hub_parts(path.parts[1:])
    base = hub_endpoint()
    url = f"{base}/" + quote("/".join(("api/models", owner, model, "tree", revision, *rest)))
    found: list[dict[str, Any]] = []
    for _ in range(_MOST_PAGES):
        page, following = _asked(path, url)
        found += page
        if not following:
            return found
        url = urljoin(url, following)
        if urlsplit(url)[:2] != urlsplit(base)[:2]:  # the token goes nowhere else
            raise UnreadableError(f"{path}: the next page of its listing is said to be on another server")
    raise UnreadableError(f"{path}: its listing does not end")


def _asked(path: RemotePath, url: str) -> tuple[list[dict[str, Any]], str]:
    """Return a page, and the address of the next one."""
    for attempt in range(_TRIES):
        transferred.note()
        try:
            return _page(path, url)
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND and path.is_bucket:
                raise UnreadableError(
                    f"{path}: the Hub has no such model, or no such revision of it", hint="a private one needs HF_TOKEN"
                ) from None
            if error.code == HTTPStatus.NOT_FOUND:
                return [], ""
            if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
            why = f"the store answers {error.code} {error.reason}"
            final = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS
        except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
            why, final = f"the store cannot be reached ({getattr(error, 'reason', error)})", False
        if final or attempt == _TRIES - 1:
            raise UnreadableError(f"{path}: {why}")
        time.sleep(_PAUSE * 4**attempt)
    raise AssertionError("the last attempt returns or raises")


def _page(path: RemotePath, url: str) -> tuple[list[dict[str, Any]], str]:
    token = hub_token()
    request = Request(url, headers={"authorization": f"Bearer {token}"} if token else {})  # noqa: S310  # the Hub's
    with build_opener(_WithoutToken).open(request, timeout=_TIMEOUT) as answer:
        raw, link = answer.read(), answer.headers.get("Link") or ""
    try:
        page = json.loads(raw)
        entries = [
            {"path": str(one["path"]), "type": one["type"], "size": int(one.get("size", 0)), "sha256": _sha256(one)}
            for one in page
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnreadableError(f"{path}: the store lists something that is no listing") from None
    found = _NEXT.search(link)
    return entries, found[1] if found else ""


def _sha256(entry: dict[str, Any]) -> str:
    """Return the digest of a large file, as its pointer has it."""
    said = str((entry.get("lfs") or {}).get("oid", ""))
    return said if re.fullmatch(r"[0-9a-f]{64}", said) else ""


class _WithoutToken(HTTPRedirectHandler):
    """Follows to another server, as for a model that has a new name, without the token."""

    def redirect_request(  # noqa: PLR0913, PLR0917  # as it is called
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            made.remove_header("Authorization")
        return made
