"""What ``--json`` prints is what the schemas in the documentation say, and nothing besides."""

from __future__ import annotations

import json
import shutil

import jsonschema
import pytest

from tests.docs_pages import DOCS
from tests.hostile.generate import CASES
from tests.samples import CORPUS
from tests.schemas import closed

SCHEMAS = {
    path.stem: jsonschema.Draft202012Validator(closed(json.loads(path.read_text())))
    for path in (DOCS / "reference" / "schemas").glob("*.json")
}
ENTRIES = sorted(
    path
    for path in CORPUS.rglob("*")
    if path.parent.parent == CORPUS or (path.is_file() and path.suffix in (".safetensors", ".ckpt", ".pt", ".keras"))
)


def checked(command, out):
    """One document, as its schema wants it."""
    document = json.loads(out)
    SCHEMAS[command].validate(document)
    return document


def test_the_schemas_are_schemas_and_refuse_what_is_not_in_them():
    for command, schema in SCHEMAS.items():
        schema.check_schema(schema.schema)
        for wrong in ({}, {"schema": f"ckptctl.{command}/1"}, {"schema": "other"}, []):
            assert not schema.is_valid(wrong), command
    assert set(SCHEMAS) == {"inspect", "verify", "convert", "prune", "consolidate", "diff"}


@pytest.mark.parametrize("entry", ENTRIES[:: max(len(ENTRIES) // 120, 1)], ids=lambda path: path.name)
def test_what_inspect_and_verify_print(entry, ckptctl):
    done = ckptctl("inspect", "--json", "--tensors", "--values", *(["--header"] if entry.is_file() else []), entry)
    if done.out:
        checked("inspect", done.out)
    checked("verify", ckptctl("verify", "--json", "--values", "--resume", entry).out)


@pytest.mark.parametrize("name", list(CASES)[::4])
def test_what_they_print_of_hostile_files(tmp_path, name, ckptctl):
    path = CASES[name](tmp_path)
    checked("verify", ckptctl("verify", "--json", path).out)
    for line in ckptctl("inspect", "--json", path).err.splitlines():
        assert set(json.loads(line)["error"]) == {"slug", "message", "hint"}


def test_what_the_others_print(tmp_path, ckptctl):
    run, made = tmp_path / "run", tmp_path / "made.safetensors"
    shutil.copytree(CORPUS / "transformers" / "trainer_run", run)
    one, other = run / "checkpoint-30", run / "checkpoint-40"
    assert checked("inspect", ckptctl("inspect", "--json", run).out)["runs"]
    assert checked("convert", ckptctl("convert", "--json", other, "-o", made).out)["conversions"][0]["written"]
    assert checked("convert", ckptctl("convert", "--json", other, "-o", tmp_path / "n.pt", "--dry-run").out)["dry_run"]
    for given in ((one, other), (other, made, "--all"), (one, one), (one, other, "--only", "model", "--values")):
        assert checked("diff", ckptctl("diff", "--json", *given[: 2 if "--values" in given else None]).out)["diff"]
    sharded = CORPUS / "deepspeed" / "zero2_bf16_2ranks"
    document = checked("consolidate", ckptctl("consolidate", "--json", sharded, "-o", tmp_path / "c.safetensors").out)
    assert document["consolidation"]["ranks"] == 2
    given = ("prune", run, "--keep-last", 1, "--keep-best", 1, "--anchor-every", 20, "--json", "--trash-for", "1d")
    assert checked("prune", ckptctl(*given, "--dry-run").out)["dry_run"]
    gone = checked("prune", ckptctl(*given, "--yes").out)["runs"][0]["deleted"]
    assert gone
    name = gone[0].rpartition("/")[2]
    assert checked("prune", ckptctl("prune", run, "--restore", name, "--json").out)["restored"]
    assert checked("verify", ckptctl("verify", "--latest-good", "--json", run).out)["latest_good"]
