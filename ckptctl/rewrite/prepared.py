"""From a checkpoint and options to exactly what will be written: names, dtypes, ties, values. Nothing is read yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptctl.errors import UnsupportedError, listed
from ckptctl.formats import Stored
from ckptctl.model import Component
from ckptctl.model.ties import kept_name, tied_groups
from ckptctl.rewrite import trees
from ckptctl.rewrite.names import new_names, without_match
from ckptctl.rewrite.plain import plain
from ckptctl.rewrite.renaming import renamed
from ckptctl.rewrite.source import Chosen, Source, check_source, choose
from ckptctl.values import BASE_KEY, BASE_VALUES_KEY, BLOCKS_KEY, RANK_KEY, RANK_VALUES_KEY, VALUES_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptctl.model import DType, TensorInfo
    from ckptctl.rewrite.options import Options

_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"})
_CAST = frozenset({Component.MODEL, Component.OTHER})
_NEVER_CAST = frozenset({Component.RNG})
_SHOWN = 5
RESERVED = frozenset(
    {"format", "__metadata__", VALUES_KEY, RANK_KEY, BLOCKS_KEY, RANK_VALUES_KEY, BASE_KEY, BASE_VALUES_KEY}
)
"""Keys of the metadata of safetensors files that have a meaning of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A tensor that will be written: what it is in the source, and what in the target."""

    source: TensorInfo
    stored: Stored
    component: Component

    @property
    def cast(self) -> bool:
        """Whether its numbers are converted."""
        return self.source.dtype is not self.stored.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What will be written.

    `items` are by their new names, `ties` from each name that is not stored to the one that is.
    `values` is the tree, None where the tensors are all there is. `left_out` says what cannot be kept and was
    dropped as asked, `aside` what was not selected, `renamed` has old and new names, `notes` the rest.
    """

    source: Source
    items: Mapping[str, Item]
    ties: Mapping[str, str]
    values: object
    metadata: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def prepare(source: Source, options: Options, *, safetensors: bool) -> Prepared:
    """Work out what to write, for a target that is a safetensors file or one of torch.

    Raises
    ------
    CkptctlError
        It must not, or cannot, be written; the class says why.
    """
    check_source(source)
    chosen = choose(source, options.only)
    tree, tensors, unkept = _kept(source, chosen, options, safetensors=safetensors)
    names = new_names(source.path, tensors, options, prefix=chosen.prefix)
    flat = safetensors and _says_all(tree.values, tensors)
    values = None if flat else _values(tree.values, names, options, chosen)
    if not tensors and not trees.count_values(values if values is not None else []):
        raise UnsupportedError(f"{source.path}: there is nothing to write: neither tensors nor plain values are left")
    components = {name: part.component for part in source.parts.values() for name in part.tensors}
    items = {names[name]: _item(tensor, components[name], options) for name, tensor in tensors.items()}
    ties = {} if options.untie else _ties(items, names, frozenset(source.metadata) | RESERVED)
    about = _about_tensors(source, tensors, options, safetensors=safetensors)
    useless = without_match(tensors, options, prefix=chosen.prefix)
    return Prepared(
        source=source,
        items={name: item for name, item in items.items() if name not in ties} if ties else items,
        ties=ties,
        values=values,
        metadata={**source.metadata, "format": "pt"},
        left_out=unkept,
        aside=(*chosen.aside, *source.beside),
        renamed=tuple((old, new) for old, new in names.items() if old.removeprefix(f"{chosen.prefix}.") != new),
        notes=(*_notes(chosen, tree, options, values), *about),
        warnings=tuple(f"--strip-prefix {prefix}: no name begins with it" for prefix in useless),
    )


def _kept(
    source: Source, chosen: Chosen, options: Options, *, safetensors: bool
) -> tuple[trees.Tidied, dict[str, TensorInfo], dict[str, str]]:
    """Return the tree and the tensors that can be kept, and what cannot, which must have been asked for."""
    tensors = {name: tensor for name, tensor in chosen.tensors.items() if options.takes(name, prefix=chosen.prefix)}
    unholdable = {
        name: why for name, tensor in tensors.items() if (why := _unholdable(tensor, options, safetensors=safetensors))
    }
    flat = chosen.values is None or options.selects
    tree = trees.Tidied() if flat else trees.tidied(chosen.values, unholdable=unholdable)
    kept = tensors.keys() - unholdable.keys() if flat else tree.tensors
    unkept = _unkept(tree, tensors, kept, unholdable)
    if unkept and not options.drop_foreign:
        raise _refused(source, unkept)
    return tree, {name: tensor for name, tensor in tensors.items() if name in kept}, unkept


def _unholdable(tensor: TensorInfo, options: Options, *, safetensors: bool) -> str:
    """Say why a tensor cannot be written; nothing if it can."""
    if tensor.layout.startswith("sparse_"):
        if not options.densify:
            return f"a sparse tensor ({tensor.layout}); --densify writes it as a dense one"
    elif tensor.layout != "strided":
        return f"a tensor that is {tensor.layout}"
    if safetensors and not tensor.dtype.storable:
        return f"of dtype {tensor.dtype.torch or tensor.dtype}, which safetensors does not have"
    if not safetensors and (not tensor.dtype.torch or tensor.dtype.name.startswith("Q")):
        return f"of dtype {tensor.dtype}, which torch does not have"
    return ""


def _unkept(
    tree: trees.Tidied, tensors: Mapping[str, TensorInfo], kept: set[str], unholdable: Mapping[str, str]
) -> dict[str, str]:
    """Return everything that cannot be kept, by its place: of the tree, and tensors that nothing left refers to."""
    found = dict(tree.unkept)
    for name, tensor in tensors.items():
        if any((id(piece.range.file), piece.range.offset) in tree.places for piece in tensor.pieces):
            continue  # it holds plain values that were too long for a header
        if name not in kept and not any(name == place or name.startswith(f"{place}.") for place in found):
            found[name] = unholdable.get(name, "inside an object that is not kept")
    return found


def _refused(source: Source, unkept: Mapping[str, str]) -> UnsupportedError:
    shown = "; ".join(f"{place}: {why}" for place, why in list(unkept.items())[:_SHOWN])
    more = f"; and {len(unkept) - _SHOWN} more" if len(unkept) > _SHOWN else ""
    several = Component.MODEL in source.parts and len(source.parts) > 1
    hint = "--drop-foreign leaves them out" + (", --only model takes the weights alone" if several else "")
    return UnsupportedError(
        f"{source.path}: {len(unkept)} of its values cannot be kept: {shown}{more}",
        hint="save them in another form: torch.view_as_real(t), say, of a complex one" if source.live else hint,
    )


def _values(tree: object, names: Mapping[str, str], options: Options, chosen: Chosen) -> object:
    """Return the tree with new names."""
    if tree is None:
        return None
    values = plain(tree) if options.plain else tree
    return renamed(values, names, prefix=chosen.prefix)


def _says_all(tree: object, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether a tree is a plain state dict, whose names say everything to safetensors."""
    flat = trees.state_dict(tree)
    return flat is not None and len(flat) == len(tensors)


def _item(tensor: TensorInfo, component: Component, options: Options) -> Item:
    dtype: DType = tensor.dtype
    cast = component in _CAST or (options.cast_all and component not in _NEVER_CAST)
    if options.dtype and cast and dtype.name in _FLOATS:
        dtype = options.dtype
    return Item(source=tensor, stored=Stored(dtype, tensor.shape), component=component)


def _ties(items: Mapping[str, Item], names: Mapping[str, str], taken: frozenset[str]) -> dict[str, str]:
    """Return names that need not be stored, each with the one whose bytes it shares; a cast on one side unties.

    A name that is a key of the metadata already, one of `taken`, is stored: it cannot be recorded there.
    """
    ties: dict[str, str] = {}
    for group in tied_groups(item.source for item in items.values()):
        found = [names[old] for old in group]
        for dtype in {items[name].stored.dtype.name: None for name in found}:
            same = [name for name in found if items[name].stored.dtype.name == dtype]
            kept = kept_name(same)
            ties |= {name: kept for name in same if name != kept and name not in taken}
    return ties


def _notes(chosen: Chosen, tree: trees.Tidied, options: Options, values: object) -> list[str]:
    notes = []
    if tree.modules:
        kinds = ", ".join(dict.fromkeys(tree.modules))
        notes.append(f"the weights of a module are kept, its program is not ({kinds[:200]})")
    if options.selects and chosen.values is not None:
        notes.append("plain values are left out, since --include and --exclude choose tensors")
    if values is None and _has_versions(chosen.values):
        notes.append("the versions of modules that torch keeps beside a state dict (_metadata) are left out")
    return notes


def _about_tensors(
    source: Source, tensors: Mapping[str, TensorInfo], options: Options, *, safetensors: bool
) -> Iterator[str]:
    texts = [key for key in source.metadata if key != "format"]
    if texts and not safetensors:
        yield f"the texts in its metadata are left out, for which torch has no place: {listed(texts, _SHOWN)}"
    dense = [name for name, tensor in tensors.items() if tensor.layout.startswith("sparse_")]
    if dense:
        yield f"sparse tensors are dense now: {listed(dense, _SHOWN)}"
    tied = tied_groups(tensors.values()) if options.untie else ()
    if tied:
        yield f"tied tensors are copies now: {listed([name for group in tied for name in group], _SHOWN)}"


def _has_versions(values: object) -> bool:
    return bool(getattr(values, "state", None)) and trees.state_dict(values) is not None
