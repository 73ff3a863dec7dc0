"""The ``.keras`` archive of Keras 3: ``metadata.json``, ``config.json`` and ``model.weights.h5``, stored in a zip.

The configuration is data: no module that it names is imported. Needs the extra ``keras`` (h5py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ckptctl.formats import _zip
from ckptctl.formats._format import Checksum, Format
from ckptctl.formats._keras import account, configured_code, state_of
from ckptctl.formats._zip_regions import checksums_for
from ckptctl.model import Contents

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_WEIGHTS = "model.weights.h5"
_JSON = ("metadata.json", "config.json")
_MAX_JSON = 64 << 20


def accepts(source: ByteRange) -> bool:
    """Whether it is a zip archive that begins with a record of a Keras model."""
    return source.head(4) == _zip.LOCAL_MAGIC and _zip.first_name(source).decode("latin1") in (*_JSON, _WEIGHTS)


def read(source: ByteRange) -> Contents:
    """Describe the weights, the configuration and the metadata."""
    from ckptctl.formats._hdf5 import read_hdf5  # noqa: PLC0415  # only these files need it

    members = {member.name: member for member in _zip.read_directory(source).members}
    if _WEIGHTS not in members:
        raise _zip.corrupt(source, f"record {_WEIGHTS} is missing")
    found = read_hdf5(_record(source, members[_WEIGHTS]))
    values = {name.removesuffix(".json"): _json(source, members[name]) for name in _JSON if name in members}
    return Contents(
        format=FORMAT.name,
        range=source,
        tensors=found.tensors,
        values={**values, **state_of(found.tensors)},
        globals=configured_code(values.get("config")),
    )


def checksums(contents: Contents) -> tuple[Checksum, ...]:
    """Return the CRC of every record."""
    return checksums_for(contents, _zip.read_directory(contents.range))


def _record(source: ByteRange, member: _zip.Member) -> ByteRange:
    if not member.stored:
        raise _zip.corrupt(source, f"record {member.name} is compressed; Keras never compresses it")
    return source.sub(member.data, member.size)


def _json(source: ByteRange, member: _zip.Member) -> object:
    if member.size > _MAX_JSON:
        raise _zip.corrupt(source, f"record {member.name} has {member.size} bytes (limit {_MAX_JSON})")
    try:
        return json.loads(_record(source, member).read())
    except (ValueError, RecursionError):
        raise _zip.corrupt(source, f"record {member.name} is no JSON") from None


FORMAT = Format(
    name="keras-zip",
    title="Keras",
    about="`.keras` archives of Keras 3: weights in HDF5 and the configuration; needs `ckptctl[keras]`",
    accepts=accepts,
    read=read,
    account=account,
    checksums=checksums,
    claims=(".keras",),
)
