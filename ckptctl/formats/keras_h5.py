"""HDF5 files of Keras: ``.weights.h5`` (``layers/NAME/vars/I``) and the older ``.h5`` with model and optimizer.

Needs the extra ``keras`` (h5py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ckptctl.errors import CorruptError
from ckptctl.formats._format import Format
from ckptctl.formats._keras import account, configured_code, state_of
from ckptctl.model import Contents

if TYPE_CHECKING:
    from ckptctl.storage import ByteRange

_MAGIC = b"\x89HDF\r\n\x1a\n"
_JSON = ("model_config", "training_config")
_NEEDED = ("model_config",)
"""What a loader makes the model of, code included."""


def accepts(source: ByteRange) -> bool:
    """Whether it begins as HDF5 files do."""
    return source.head(len(_MAGIC)) == _MAGIC


def read(source: ByteRange) -> Contents:
    """Describe datasets and the attributes of the root."""
    from ckptctl.formats._hdf5 import read_hdf5  # noqa: PLC0415  # only these files need it

    found = read_hdf5(source, texts=_NEEDED)
    values = {key: _parsed(source, key, value) for key, value in found.attributes.items()}
    return Contents(
        format=FORMAT.name,
        range=source,
        tensors=found.tensors,
        values={**values, **state_of(found.tensors)},
        globals=configured_code(values.get("model_config")),
    )


def _parsed(source: ByteRange, key: str, value: object) -> object:
    try:
        return json.loads(value) if key in _JSON and isinstance(value, str) else value
    except (ValueError, RecursionError):
        if key in _NEEDED:
            raise CorruptError(f"{source.file.path}: its attribute {key} is no JSON") from None
        return value


FORMAT = Format(
    name="keras-h5",
    title="HDF5",
    about="HDF5 files of Keras, `.weights.h5` and `.h5`; needs `ckptctl[keras]`",
    accepts=accepts,
    read=read,
    account=account,
    claims=(".h5", ".hdf5"),
)
