"""Which kind of damage each level of `verify` finds: made anew over real, hostile and reported files.

``python -m tests.docs_pages --write`` puts the table into docs/reference/verify.md.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from ckptctl.ops.verify import Level
from ckptctl.ops.verify.run import verify_path
from tests.samples import CORPUS, HERE, load

Make = Callable[[Path], Path]
_GENERATOR = load(HERE / "hostile" / "generate.py")
_LEVELS = {"--quick": Level(quick=True), "default": Level(), "--values": Level(values=True)}


def corpus(name: str) -> Make:
    """A damaged file or directory of the corpus, as it is."""
    return lambda _: CORPUS / name


def hostile(name: str) -> Make:
    """A file of the generator of hostile ones."""
    return _GENERATOR.CASES[name]


def case(name: str) -> Make:
    """A fault that somebody reported."""

    def make(directory: Path) -> Path:
        sys.path.insert(0, str(HERE / "cases"))
        import common
        import open_cases  # noqa: F401  # registers the cases

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            common.REG[name]["fn"](directory)
        files = [path for path in directory.iterdir() if path.suffix != ".sha256"]
        return files[0] if len(files) == 1 and files[0].is_file() else directory

    return make


def flipped(directory: Path) -> Path:
    """A safetensors file with a digest beside it, and one bit that is not as it was."""
    source = CORPUS / "safetensors" / "edge" / "with_metadata.safetensors"
    path = directory / "m.safetensors"
    raw = bytearray(source.read_bytes())
    (directory / "m.safetensors.sha256").write_text(hashlib.sha256(raw).hexdigest())
    raw[-1] ^= 1
    path.write_bytes(raw)
    return path


def unflipped(directory: Path) -> Path:
    """The same without a digest: nobody can know."""
    (directory / "m.safetensors.sha256").unlink() if flipped(directory) else None
    return directory / "m.safetensors"


def number(value: float) -> Make:
    """A tensor with one number that is not finite."""

    def make(directory: Path) -> Path:
        import torch
        from safetensors.torch import save_file

        save_file({"w": torch.tensor([1.0, value, 2.0])}, directory / "m.safetensors")
        return directory / "m.safetensors"

    return make


def extra_shard(directory: Path) -> Path:
    """A shard of an older save beside those of the newer one."""
    target = directory / "model"
    shutil.copytree(CORPUS / "transformers" / "sharded_llama", target)
    shutil.copy(target / "model-00001-of-00004.safetensors", target / "model-00005-of-00005.safetensors")
    return target


def mixed(key: str) -> Make:
    """The files of two ranks, one of which is of another save."""

    def make(directory: Path) -> Path:
        import torch

        for rank in range(2):
            torch.save(
                {"w": torch.ones(2), "world_size": 2, "step": 7, key: 7 + rank}, directory / f"ckpt-rank{rank}.pt"
            )
        return directory

    return make


def renamed(directory: Path) -> Path:
    """A checkpoint of step 40 under the name of step 50."""
    shutil.copytree(CORPUS / "transformers" / "trainer_run" / "checkpoint-40", directory / "checkpoint-50")
    return directory / "checkpoint-50"


KINDS: dict[str, Make] = {
    "safetensors cut": case("V01"),
    "bytes after the last tensor": hostile("st_trailing_bytes"),
    "two tensors overlap": hostile("st_overlap"),
    "hole between tensors": hostile("st_hole_between"),
    "a name twice": hostile("st_name_twice"),
    "header beyond the limit": hostile("st_header_over_limit"),
    "header is not JSON": corpus("safetensors/invalid/header_not_json.safetensors"),
    "shape against bytes": case("V11"),
    "unknown dtype": corpus("safetensors/invalid/unknown_dtype.safetensors"),
    "all zeros": corpus("damaged/pt_all_zero_bytes.pt"),
    "empty file": corpus("damaged/pt_zero_length.pt"),
    "a web page": hostile("st_html_page"),
    "a Git LFS pointer": corpus("damaged/lfs_pointer.safetensors"),
    "text": corpus("damaged/text_named.pt"),
    "bit flip, digest on record": flipped,
    "bit flip, nothing on record": unflipped,
    "NaN": number(float("nan")),
    "Inf": number(float("inf")),
    "bit flip in a .pt": case("V03"),
    ".pt cut in half": corpus("damaged/pt_truncated_half.pt"),
    ".pt without its last bytes": corpus("damaged/pt_truncated_last_bytes.pt"),
    ".pt without a record": corpus("damaged/pt_storage_record_missing.pt"),
    ".pt without its pickle": corpus("damaged/pt_pickle_missing.pt"),
    ".pt whose data was never written": corpus("torch_save/skip_data.pt"),
    "legacy .pt cut": corpus("damaged/legacy_truncated.pt"),
    "runs code when loaded": hostile("pk_global_system"),
    "a class of somebody's own": corpus("torch_save/custom_class.pt"),
    "missing shard": case("V05"),
    "extra shard": extra_shard,
    "cut shard": corpus("damaged/index_shard_truncated"),
    "stale index": corpus("damaged/index_names_absent_tensor"),
    "index leads out": corpus("damaged/index_escapes_directory"),
    "index states a wrong total": corpus("damaged/index_total_size_wrong"),
    "weights not gathered (ZeRO-3)": case("V13"),
    "missing rank": corpus("damaged/fsdp_rank_missing"),
    "missing rank of an optimizer": corpus("damaged/zero_optimizer_rank_missing"),
    "ranks of different steps": mixed("step"),
    "ranks of different worlds": mixed("world_size"),
    "name and step disagree": renamed,
    "distributed save not committed": corpus("damaged/dcp_metadata_missing"),
    "distributed save lacks a file": corpus("damaged/dcp_shard_file_missing"),
    "distributed save lacks a block": corpus("damaged/dcp_chunk_missing"),
    "distributed save cut": corpus("damaged/dcp_shard_file_truncated"),
    "save cut short, siblings whole": case("V16"),
    "latest leads nowhere": corpus("damaged/zero_latest_dangling"),
    "a link leads nowhere": corpus("damaged/lightning_last_link_dangling"),
    "digest of an older file": case("S02"),
}


def found(make: Make, level: Level) -> list[str]:
    """Return the slugs of what is wrong, at one level."""
    with tempfile.TemporaryDirectory() as name:
        # The name of a temporary directory may look like that of an unfinished save.
        directory = Path(name) / "it"
        directory.mkdir()
        reports = [call() for call in verify_path(make(directory), level)]
    wrong = {f.slug: None for report in reports for f in report.findings if f.severity.value == "error"}
    return list(wrong)


def table() -> list[str]:
    """Return the lines of the table."""
    lines = [f"| what is wrong | {' | '.join(f'`{level}`' if level[0] == '-' else level for level in _LEVELS)} |"]
    lines.append("| --- " * (1 + len(_LEVELS)) + "|")
    for title, make in KINDS.items():
        cells = [", ".join(f"`{slug}`" for slug in found(make, level)) or "–" for level in _LEVELS.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines
