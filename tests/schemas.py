"""The JSON schemas in the documentation, made from the types of the reports (``nox -s docs`` writes them anew)."""

from __future__ import annotations

import ast
import enum
import importlib
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import ckptctl
from ckptctl.model import Finding
from ckptctl.model.run import State
from ckptctl.ops.consolidate import ConsolidateReport
from ckptctl.ops.diff import DiffReport
from ckptctl.ops.inspect import InspectReport
from ckptctl.ops.inspect.run import RunReport
from ckptctl.ops.verify import VerifyReport
from ckptctl.retention import Action, Policy
from ckptctl.rewrite.report import RewriteReport
from ckptctl.runs.trash import Trash
from ckptctl.values import State as Values
from ckptctl.values.compare import ValueDiff

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_SAID: Schema = {"description": "a value as it was saved; what JSON has no words for is an object with a $ key"}
_NUMBER: Schema = {"anyOf": [{"type": "number"}, {"type": "object", "required": ["$float"]}]}
_FINDING = ("aspect", "severity", "slug", "where", "message")


def of(kind: Any, defs: dict[str, Schema]) -> Schema:
    """The schema of a type, as `to_json` writes its values; classes go into `defs`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        made = [of(one, defs) for one in inner]
        return {"anyOf": made}
    if origin in (list, tuple, frozenset) or kind in (tuple, frozenset):
        return {"type": "array", **({"items": of(inner[0], defs)} if inner else {})}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of(inner[1], defs)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if is_dataclass(kind) and kind is not Values:
        if kind.__name__ not in defs:
            defs[kind.__name__] = {}
            defs[kind.__name__] = _of_class(kind, defs)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    simple = {str: _TEXT, Path: _TEXT, bool: {"type": "boolean"}, int: {"type": "integer"}, float: _NUMBER,
              datetime: {"type": "string", "format": "date-time"}, timedelta: {"type": "number"},
              type(None): {"type": "null"}}  # fmt: skip
    return simple.get(kind, _SAID)


def _of_class(kind: Any, defs: dict[str, Schema]) -> Schema:
    if kind is ValueDiff:
        return objects(
            {"path": _TEXT, "a": _SAID, "b": _SAID, "only": {"enum": ["", "a", "b"]}, "unread": {"type": "boolean"}}
        )
    hints = typing.get_type_hints(kind, localns=_imported(kind.__module__))
    if kind is Finding:
        return objects({**{name: of(hints[name], defs) for name in _FINDING}, "hint": _TEXT})
    return objects({field.name: of(hints[field.name], defs) for field in fields(kind)})


def _imported(name: str) -> dict[str, Any]:
    """All that a module imports, also what only type checkers see of it."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(Path(sys.modules[name].__file__ or "").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            module = importlib.import_module(node.module)
            found |= {one.name: getattr(module, one.name) for one in node.names}
    return found


def objects(properties: Mapping[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object with these properties, all of which are there but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


def listed(item: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": item}


def documents() -> dict[str, Schema]:
    """The schema of the document of each command."""
    defs: dict[str, dict[str, Schema]] = {
        name: {} for name in ("inspect", "verify", "convert", "consolidate", "diff", "prune")
    }

    def ref(command: str, kind: Any) -> Schema:
        return of(kind, defs[command])

    whole, flag = {"type": "integer"}, {"type": "boolean"}
    skipped = objects({"path": _TEXT, "why": _TEXT, "unseen": flag})
    decision = objects({"action": ref("prune", Action), "reasons": listed(_TEXT), "path": _TEXT, "paths": listed(_TEXT),
                        "step": ref("prune", int | float | None), "epoch": ref("prune", int | float | None),
                        "saved_at": ref("prune", datetime), "nbytes": whole, "metrics": {"type": "object"},
                        "state": ref("prune", State)})  # fmt: skip
    group = objects(
        {
            "family": _TEXT,
            "title": _TEXT,
            "policy": ref("prune", Policy),
            "notices": listed(_TEXT),
            "checkpoints": listed(decision),
        }
    )
    pruned = objects({"path": _TEXT, "groups": listed(group), "frees": whole, "notices": listed(_TEXT), "trash": listed(ref("prune", Trash)),
                      "deleted": listed(_TEXT), "emptied": listed(_TEXT), "freed": whole, "errors": listed(_TEXT)})  # fmt: skip
    refused = listed(objects({"slug": _TEXT, "message": _TEXT}))
    bodies: dict[str, list[Schema]] = {
        "inspect": [objects({"checkpoints": listed(ref("inspect", InspectReport)), "runs": listed(ref("inspect", RunReport))})],
        "verify": [objects({"checkpoints": listed(ref("verify", VerifyReport))}),
                   objects({"latest_good": {"anyOf": [_TEXT, {"type": "null"}]}, "skipped": listed(skipped)})],
        "convert": [objects({"dry_run": flag, "conversions": listed(ref("convert", RewriteReport))})],
        "consolidate": [objects({"dry_run": flag, "consolidation": ref("consolidate", ConsolidateReport)})],
        "diff": [objects({"diff": ref("diff", DiffReport)})],
        "prune": [objects({"dry_run": flag, "freed_bytes": whole, "refused": refused, "runs": listed(pruned)}),
                  objects({"restored": listed(_TEXT), "missing": listed(_TEXT)})],
    }  # fmt: skip
    return {command: _document(command, bodies[command], defs[command]) for command in bodies}


def _document(command: str, bodies: list[Schema], defs: dict[str, Schema]) -> Schema:
    frame = {
        "schema": {"const": f"ckptctl.{command}/1"},
        "transferred": objects({"requests": {"type": "integer"}, "bytes": {"type": "integer"}}),
    }
    for body in bodies:
        body["properties"] |= frame
        body["required"].append("schema")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"What ckptctl {command} --json prints (ckptctl {ckptctl.__version__})",
        **(bodies[0] if len(bodies) == 1 else {"oneOf": bodies}),
        "$defs": defs,
    }


def closed(schema: Any) -> Any:
    """The same schema, with no room for what it does not name: fields may be added, but not unsaid."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(one) for key, one in schema.items()}
    return (
        {**made, "additionalProperties": False} if isinstance(made.get("properties"), dict) and "type" in made else made
    )
