"""How Amazon S3, and what speaks like it, is reached: keys, profiles and endpoints, as Amazon's own tools find them."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ckptctl.errors import UnreadableError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CONTAINER = "AWS_CONTAINER_CREDENTIALS_"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE", f"{_CONTAINER}FULL_URI",
         f"{_CONTAINER}RELATIVE_URI")  # fmt: skip


def stated_endpoint() -> str:
    """Return the endpoint that the environment gives; empty if it gives none."""
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")


def checksums(endpoint: str) -> dict[str, Any]:
    """Have Amazon check each part that is sent by its SHA-256; what is at another endpoint only if it is asked to."""
    own = os.environ.get("AWS_CHECKSUM_ALGORITHM") or endpoint or stated_endpoint()
    return {} if own else {"checksum_algorithm": "SHA256"}


def credentials() -> dict[str, Any]:
    """Return what boto3 finds in its files and profiles, where the environment itself has no keys for the store.

    Raises
    ------
    UnreadableError
        They name something that is not there, such as a profile.
    """
    found: dict[str, Any] = {}
    if os.environ.get(_ENDPOINTS[0]):
        found["endpoint"] = os.environ[_ENDPOINTS[0]]
    if any(name in os.environ for name in _KEYS):
        return found
    try:
        boto3, provider = import_module("boto3"), import_module("obstore.auth.boto3")
        failed, sessions = import_module("botocore.exceptions"), import_module("botocore.session")
    except ImportError:
        return found
    try:
        session = sessions.get_session()
        found["credential_provider"] = provider.Boto3CredentialProvider(boto3.Session(botocore_session=session))
        endpoint = "" if stated_endpoint() else _endpoint_of(session)
    except failed.BotoCoreError as error:
        raise UnreadableError(f"s3://…: boto3 finds no keys: {' '.join(str(error).split())[:200]}") from None
    except (ValueError, TypeError):  # it knows none: the machine's own role, perhaps
        return found
    return {**found, "endpoint": endpoint} if endpoint else found


def _endpoint_of(session: Any) -> str:
    """Return the endpoint that a profile has for S3, or for all services."""
    profile = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(profile.get("services", ""), {})
    return str(services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url") or "")
