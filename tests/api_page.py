"""The page on the library, made from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import Any

import ckptctl
from ckptctl import training

_SECTION = re.compile(r"^(Parameters|Raises|Returns|Attributes)\n-+\n", re.MULTILINE)
_INNER = {
    "Options": {"convert": "ConvertOptions", "consolidate": "ConvertOptions", "diff": "DiffOptions"},
    "Level": {"verify": "VerifyLevel"},
}
_INTRO = """# Python

<!-- Written by `nox -s docs` from the code; change it there. -->

`import ckptctl` costs nothing and needs neither torch nor NumPy; what is used is loaded when it is. Everything raises subclasses of
`CkptctlError` ([errors](errors.md)), with `message`, `hint` and `slug`. Reports are dataclasses; `ckptctl --json` prints the same
([JSON](json.md)). Paths may be addresses of stores. `ckptctl.training` is for loops: `save` and `load` need torch (`ckptctl[torch]`).

```python
import ckptctl

for info in ckptctl.find_checkpoints("tests/corpus/data/transformers/trainer_run"):
    print(info.path.name, info.step.value, info.complete, dict(info.metrics))
checkpoint = ckptctl.open_checkpoint("tests/corpus/data/torch_save/train_dict.pt")
for name, tensor in checkpoint.parts[ckptctl.Component.MODEL].tensors.items():
    print(name, tensor.dtype, tensor.shape, tensor.nbytes)
report = ckptctl.verify(checkpoint.path, level=ckptctl.VerifyLevel(values=True))
assert report.good, [finding.message for finding in report.findings]
```
"""


def api_page() -> str:
    """All that is public, with what it takes and raises."""
    lines = [_INTRO, "## ckptctl", ""]
    names = [name for name in ckptctl.__all__ if name != "__version__"]
    every = {name: getattr(ckptctl, name) for name in names}
    for name in sorted(every, key=lambda name: (inspect.isclass(every[name]), name)):
        lines += _entry(f"ckptctl.{name}", name, every[name])
    lines += ["## ckptctl.training", ""]
    for name in training.__all__:
        if name not in every:
            lines += _entry(f"ckptctl.training.{name}", name, getattr(training, name))
    return "\n".join(lines)


def _entry(title: str, name: str, one: Any) -> list[str]:
    lines = [f"### {title}", ""]
    if not inspect.isclass(one):
        return [*lines, *_call(name, one), *_doc(one)]
    if is_dataclass(one):
        return [*lines, *_doc(one), *_fields(one)]
    if issubclass(one, (Exception, ckptctl.Component.__mro__[1])) or "__init__" not in vars(one):
        return [*lines, *_doc(one), *_values(one)]
    lines += [*_call(name, one), *_doc(one)]
    for inner, method in vars(one).items():
        if not inner.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
            lines += [f"#### {name}.{inner}", ""]
            lines += [*([] if isinstance(method, property) else _call(f"{name}.{inner}", method)), *_doc(method)]
    return lines


def _call(name: str, one: Any) -> list[str]:
    """How it is called, a line for each argument where there are many."""
    signature, parts = inspect.signature(one), []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = "…" if callable(parameter.default) else repr(parameter.default)
        given = "" if parameter.default is parameter.empty else f" = {default}"
        parts.append(f"{parameter.name}: {_kind(name, parameter.annotation)}{given}")
    returned = signature.return_annotation
    end = f" -> {_kind(name, returned)}" if isinstance(returned, str) and returned != "None" else ""
    text = f"{name}({', '.join(parts)}){end}"
    if len(text) > 100:
        text = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return ["```text", text, "```", ""]


def _kind(name: str, annotation: str) -> str:
    for inner, outer in _INNER.items():
        annotation = re.sub(rf"\b{inner}\b", outer.get(name, inner), annotation)
    return annotation.replace("str | os.PathLike[str]", "path")


def _fields(one: Any) -> list[str]:
    return [
        "Fields: " + ", ".join(f"`{field.name}`" for field in fields(one) if not field.name.startswith("_")) + ".",
        "",
    ]


def _values(one: Any) -> list[str]:
    if hasattr(one, "__members__"):
        return ["One of " + ", ".join(f"`{value.name}`" for value in one) + ".", ""]
    return []


def _doc(one: Any) -> list[str]:
    """A docstring with its sections as lists."""
    parts = _SECTION.split(inspect.getdoc(one) or "")
    lines = [parts[0].replace("``", "`").strip(), ""]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        lines += [f"{title}:", ""]
        for line in body.strip("\n").splitlines():
            lines.append(
                f"- `{line}`" if line and not line.startswith(" ") else f"  {line.strip()}".replace("``", "`").rstrip()
            )
        lines.append("")
    return lines
