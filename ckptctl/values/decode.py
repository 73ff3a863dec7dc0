"""Read the nested plain state back from JSON, as `ckptctl.values.encode` wrote it. Nothing is built but records."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING

from ckptctl.values import Described, Numbers, Span, TensorRef
from ckptctl.values.encode import MAX_NODES, MAX_TEXT, NUMBERS, SCHEMA, nodes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptctl.model import Level, Piece, TensorInfo

_FLOATS = {"nan": "nan", "inf": "inf", "-inf": "-inf"}


def decode(
    text: str, tensors: Mapping[str, TensorInfo], names: frozenset[str], level_of: Callable[[str], Level]
) -> object:
    """Read a state back from JSON.

    `tensors` are those of the file, `names` all that a reference may name (tied ones too), `level_of` says how far
    a class is trusted.

    Raises
    ------
    ValueError
        It is not such a state, or not that of these tensors; the message says why.
    """
    if len(text) > MAX_TEXT or nodes_in(text) > MAX_NODES:
        raise ValueError("it is too large")
    decoder = _Decoder(tensors, names, level_of)
    try:
        root = json.loads(text, object_pairs_hook=decoder.members, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON (at character {error.pos})") from None
    except (RecursionError, binascii.Error, KeyError, TypeError, AttributeError):
        raise ValueError("it is malformed") from None
    if not isinstance(root, dict) or root.get("schema") != SCHEMA or root.keys() != {"schema", "root"}:
        raise ValueError(f"it is not {SCHEMA}")
    unnamed = names - decoder.named
    if unnamed:
        raise ValueError(f"it does not name {min(unnamed)}")
    return root["root"]


class _Decoder:
    """Turns the members of each object into the value that they stand for, from the inside out."""

    def __init__(
        self, tensors: Mapping[str, TensorInfo], names: frozenset[str], level_of: Callable[[str], Level]
    ) -> None:
        self._tensors, self._names, self._level_of = tensors, names, level_of
        self.named: set[str] = set()

    def members(self, members: list[tuple[str, object]]) -> object:
        """Return the value of an object."""
        fields = dict(members)
        if len(fields) != len(members):
            raise ValueError("a key occurs twice")
        special = [key for key in fields if key.startswith("$")]
        if not special:
            return fields
        make = _SPECIAL.get(special[0])
        if make is None or len(special) > 1:
            raise ValueError(f"it has the unknown key {special[0][:40]}")
        return make(self, fields.pop(special[0]), fields)

    def tensor(self, name: object, fields: dict[str, object]) -> object:
        if not isinstance(name, str) or name not in self._names:
            raise ValueError("it names a tensor that is not there")
        self.named.add(name)
        kind, grad = fields.pop("class", "torch.Tensor"), fields.pop("requires_grad", False)
        state = fields.pop("state", None)
        if fields or not isinstance(kind, str) or not isinstance(grad, bool):
            raise ValueError("a reference to a tensor is malformed")
        return TensorRef(name=name, type=kind, requires_grad=grad, state=state)

    def described(self, kind: object, fields: dict[str, object]) -> object:
        args, how = fields.pop("args", []), fields.pop("how", "call")
        state, items = fields.pop("state", None), fields.pop("items", None)
        if fields or not isinstance(kind, str) or not isinstance(args, list) or how not in ("call", "new", "new-ex"):
            raise ValueError("a described object is malformed")
        level = self._level_of(kind)
        return Described(type=kind, level=level, args=tuple(args), state=state, items=items, how=str(how))

    def span(self, name: object, *, text: bool) -> object:
        return Span(range=self._vector(name, ("U8",)).range, text=text)

    def numbers(self, name: object, fields: dict[str, object]) -> object:
        kind = fields.pop("type", None)
        if fields or kind not in ("list", "tuple"):
            raise ValueError("a list of numbers is malformed")
        piece = self._vector(name, tuple(NUMBERS))
        return Numbers(range=piece.range, dtype=self._tensors[str(name)].dtype, type=str(kind))

    def _vector(self, name: object, dtypes: tuple[str, ...]) -> Piece:
        tensor = self._tensors.get(name) if isinstance(name, str) else None
        if tensor is None or tensor.dtype.name not in dtypes or len(tensor.shape) != 1 or len(tensor.pieces) != 1:
            raise ValueError("it names a vector that is not there")
        self.named.add(tensor.name)
        return tensor.pieces[0]


def _dict_of(_: _Decoder, pairs: object, fields: dict[str, object]) -> object:
    if fields or not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError("a dict is malformed")
    made = {_hashable(key): value for key, value in pairs}
    if len(made) != len(pairs):
        raise ValueError("a key of a dict occurs twice")
    return made


def _hashable(key: object) -> object:
    """Keys are plain: what a file made must not choose how it is hashed."""
    if isinstance(key, tuple) and len(key) <= 16:
        return tuple(_hashable(part) for part in key)
    if key is None or isinstance(key, (str, int, float, bytes)):
        return key
    raise ValueError("a key of a dict is not plain")


def _only(fields: dict[str, object], value: object, kind: type) -> object:
    if fields or not isinstance(value, kind):
        raise ValueError("a special value is malformed")
    return value


_SPECIAL: Mapping[str, Callable[[_Decoder, object, dict[str, object]], object]] = {
    "$tensor": lambda decoder, value, fields: decoder.tensor(value, fields),
    "$object": lambda decoder, value, fields: decoder.described(value, fields),
    "$numbers": lambda decoder, value, fields: decoder.numbers(value, fields),
    "$data": lambda decoder, value, fields: decoder.span(_only(fields, value, str), text=False),
    "$text": lambda decoder, value, fields: decoder.span(_only(fields, value, str), text=True),
    "$dict": _dict_of,
    "$tuple": lambda _, value, fields: tuple(_only(fields, value, list)),  # type: ignore[arg-type]
    # Each NaN is one of its own, or two of them as keys would be one.
    "$float": lambda _, value, fields: float(_FLOATS[str(_only(fields, value, str))]),
    "$bytes": lambda _, value, fields: base64.b64decode(str(_only(fields, value, str)), validate=True),
}


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")
