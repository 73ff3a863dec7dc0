"""Delta checkpoints: whatever the history, they load to what a whole save holds; a broken link is named."""

from __future__ import annotations

import json
import random
import struct
import warnings
from datetime import datetime, timezone

import pytest
import torch

from ckptctl.errors import CorruptError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.ops.diff import diff
from ckptctl.ops.inspect import inspect
from ckptctl.ops.prune import Pruning, Settings
from ckptctl.ops.verify import verify
from ckptctl.retention import Policy
from ckptctl.runs import find_checkpoints
from ckptctl.storage import address
from ckptctl.training import AsyncSaver, Uploader, latest_good, load, prune, save
from tests.storage.stores import bucket, start

LAST = Policy(last=1, best=0, anchor_every=0)


def same(one, other):
    """Whether two nested states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        equal = isinstance(other, torch.Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return equal and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def named(run, step):
    return run / f"step_{step}.safetensors"


def frozen(step, size=50_000):
    """A large part that stays and a small one that changes."""
    torch.manual_seed(3)
    return {
        "model": {"body": {"w": torch.rand(size), "b": torch.rand(7)}, "head": torch.full((9,), float(step))},
        "step": step,
        "names": ["a", step],
    }


def chain(run, *steps):
    before = None
    for step in steps:
        save(named(run, step), frozen(step), base=before)
        before = named(run, step)
    return run


def test_only_what_changed_is_written_and_all_commands_see_the_whole(tmp_path, ckptctl):
    chain(tmp_path, 1, 2, 3)
    sizes = [named(tmp_path, step).stat().st_size for step in (1, 2, 3)]
    assert sizes[0] > 200_000
    assert max(sizes[1:]) < 4_000
    for step in (1, 2, 3):
        assert same(load(named(tmp_path, step)), frozen(step))
        save(tmp_path / f"whole_{step}.safetensors", frozen(step))
        assert diff(named(tmp_path, step), tmp_path / f"whole_{step}.safetensors").equal
    report = inspect(named(tmp_path, 3))
    assert (report.tensors, report.step.value) == (3, 3)
    assert "a delta on step_2.safetensors" in ckptctl("inspect", named(tmp_path, 3)).out
    assert verify(named(tmp_path, 3)).bytes.value == "verified"
    (tmp_path / "apart").mkdir()
    for command, *only in (("consolidate", "--only", "all"), ("convert",)):
        target = tmp_path / "apart" / f"{command}.safetensors"
        assert ckptctl(command, named(tmp_path, 3), "-o", target, *only).status == 0
        assert same(load(target), frozen(3))
    assert load(tmp_path)["step"] == 3
    assert latest_good(tmp_path) == named(tmp_path, 3)


@pytest.mark.parametrize("seed", range(25))
def test_random_histories_load_to_what_a_whole_save_holds(tmp_path, seed):
    chosen = random.Random(seed)
    torch.manual_seed(seed)
    names = [f"t{i}" for i in range(8)]
    state = {name: torch.randn(chosen.choice([0, 1, 5, 300, 3000])) for name in names}
    history = []
    for step in range(14):
        for name in chosen.sample(names, chosen.randrange(4)):
            kind = chosen.random()
            if kind < 0.4:
                state[name] = state[name] + 1
            elif kind < 0.5:
                state.pop(name)
            elif kind < 0.6:
                state[name] = state[name].to(torch.bfloat16 if state[name].dtype is torch.float32 else torch.float32)
            elif kind < 0.7:
                state[name] = torch.randn(3, 4).t()
            elif kind < 0.8 and len(state) > 1:
                state[name] = state[chosen.choice([one for one in state if one != name] or [name])]
            else:
                state[name] = torch.randn(40)[::2]
            state.setdefault(name, torch.zeros(2))
        whole = {"model": {k: v.clone() if chosen.random() < 0.5 else v for k, v in state.items()}, "step": step}
        base = chosen.choice(history)[0] if history and chosen.random() < 0.9 else None
        save(named(tmp_path, step), whole, base=base)
        save(tmp_path / f"whole{step}.safetensors", whole)
        history.append((named(tmp_path, step), tmp_path / f"whole{step}.safetensors"))
        state = {k: v.clone() for k, v in state.items()}
    for path, whole in history:
        assert same(load(path), load(whole))
        assert diff(path, whole).equal


def test_a_chain_ends_and_begins_anew(tmp_path):
    chain(tmp_path, *range(1, 21))
    lengths = [len(open_checkpoint(named(tmp_path, step)).bases) for step in range(1, 21)]
    assert lengths == [*range(9), *range(9), 0, 1]
    assert same(load(named(tmp_path, 9)), frozen(9))


# --- broken links ---


def test_a_missing_base_is_named(tmp_path, ckptctl):
    chain(tmp_path, 1, 2, 3)
    named(tmp_path, 1).unlink()
    for step in (2, 3):
        with pytest.raises(CorruptError, match=r"its base step_1.safetensors is missing"):
            load(named(tmp_path, step))
        done = ckptctl("inspect", named(tmp_path, step))
        assert (done.status, "step_1.safetensors is missing" in done.err) == (2, True)
        assert ckptctl("verify", named(tmp_path, step)).status == 1
        assert ckptctl("convert", named(tmp_path, step), "-o", tmp_path / "x.pt").status == 2
    assert not any(info.complete for info in find_checkpoints(tmp_path))


def over(path, state):
    """Write over a file that others need, as some other program does."""
    other = path.with_name("other") / path.name
    other.parent.mkdir(exist_ok=True)
    save(other, state)
    other.replace(path)
    other.with_name(f"{path.name}.sha256").replace(f"{path}.sha256")


def test_a_base_that_was_saved_anew_is_named(tmp_path):
    chain(tmp_path, 1, 2)
    over(named(tmp_path, 1), frozen(1, size=60_000))
    with pytest.raises(CorruptError, match="its base step_1.safetensors is another one by now"):
        load(named(tmp_path, 2))
    other = frozen(1)
    other["model"]["body"]["b"] += 1
    over(named(tmp_path, 1), other)  # of the same size
    with pytest.raises(CorruptError, match="sha256 is"):
        load(named(tmp_path, 2))
    report = verify(named(tmp_path, 2))
    assert [one.slug for one in report.findings] == ["digest-mismatch"]
    assert "step_2.safetensors says" in report.findings[0].message


def test_a_flipped_bit_in_a_base_is_found(tmp_path):
    chain(tmp_path, 1, 2)
    raw = bytearray(named(tmp_path, 1).read_bytes())
    raw[-100] ^= 1
    named(tmp_path, 1).write_bytes(bytes(raw))
    with pytest.raises(CorruptError, match="sha256"):
        load(named(tmp_path, 2))
    save(named(tmp_path, 3), frozen(3), base=named(tmp_path, 1))  # what is not the same is written
    assert verify(named(tmp_path, 3)).judgement.value == "wrong"  # and the rest is still in a damaged file


def changed(path, change):
    """Write a file anew with other metadata."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    path.with_name(f"{path.name}.sha256").unlink()


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("name", "../step_1.safetensors", "malformed"),
        ("name", "step_2.safetensors", "in a circle"),
        ("name", 3, "malformed"),
        ("size", -1, "another one"),
        ("size", True, "malformed"),
        ("sha256", "", "malformed"),
        ("tensors", ["nothing"], "has no tensor nothing"),
        ("tensors", ["model.head"], "is here too"),
        ("tensors", [], "not of these tensors"),
        ("tensors", "model.body.w", "malformed"),
    ],
)
def test_what_a_delta_says_of_its_base_is_checked(tmp_path, field, value, why, ckptctl):
    chain(tmp_path, 1, 2)

    def change(texts):
        texts["ckptctl.base"] = json.dumps({**json.loads(texts["ckptctl.base"]), field: value})

    changed(named(tmp_path, 2), change)
    with pytest.raises(CorruptError, match=why):
        load(named(tmp_path, 2))
    assert ckptctl("verify", named(tmp_path, 2)).status == 1


def test_two_that_name_each_other(tmp_path):
    chain(tmp_path, 1, 2, 3)
    changed(named(tmp_path, 2), lambda texts: texts.update(
        {"ckptctl.base": json.dumps({**json.loads(texts["ckptctl.base"]), "name": "step_3.safetensors",
                                     "size": named(tmp_path, 3).stat().st_size})}))  # fmt: skip
    with pytest.raises(CorruptError, match="in a circle|another one"):
        load(named(tmp_path, 3))
    with pytest.raises(CorruptError, match="in a circle|another one"):
        load(named(tmp_path, 2))


def test_a_base_that_is_of_no_use_is_warned_of_and_all_is_saved(tmp_path):
    for bad in ("nothing.safetensors", "broken.safetensors"):
        (tmp_path / "broken.safetensors").write_bytes(b"x" * 100)
        with pytest.warns(UserWarning, match="the whole state is saved"):
            save(named(tmp_path, 2), frozen(2), base=tmp_path / bad)
        assert not open_checkpoint(named(tmp_path, 2)).bases
        named(tmp_path, 2).unlink()
    save(named(tmp_path, 2), frozen(2))
    save(named(tmp_path, 3), {"other": torch.ones(3)}, base=named(tmp_path, 2))
    assert not open_checkpoint(named(tmp_path, 3)).bases
    for target, base in (
        (named(tmp_path, 2), named(tmp_path, 2)),
        (named(tmp_path, 4), tmp_path / "sub" / "step_1.safetensors"),
        (named(tmp_path, 4), tmp_path / "step_1.pt"),
        (tmp_path / "directory", named(tmp_path, 2)),
    ):
        with pytest.raises(UsageError):
            save(target, frozen(1), base=base)


# --- in the background, in runs, in buckets ---


def test_in_the_background(tmp_path):
    with AsyncSaver() as saver:
        saver.save(named(tmp_path, 1), frozen(1))
        saver.save(named(tmp_path, 2), frozen(2), base=named(tmp_path, 1))
    assert open_checkpoint(named(tmp_path, 2)).bases[0].name == "step_1.safetensors"
    assert same(load(named(tmp_path, 2)), frozen(2))


def test_prune_keeps_the_bases_of_what_it_keeps_and_never_orphans_one(tmp_path):
    chain(tmp_path, 1, 2, 3)
    chain(tmp_path, 4, 5, 6)
    assert prune(tmp_path, LAST).count == 3
    assert [info.step.value for info in find_checkpoints(tmp_path)] == [4, 5, 6]
    assert same(load(named(tmp_path, 6)), frozen(6))
    save(named(tmp_path, 7), frozen(7))
    with Pruning([tmp_path], Settings(policy=LAST), datetime.now(tz=timezone.utc)) as pruning:
        order = [info.path.name for info in pruning.plans[0].victims]
        assert order == ["step_6.safetensors", "step_5.safetensors", "step_4.safetensors"]
        (tmp_path / "step_5.safetensors.keep").touch()  # pinned after it was planned
        report = pruning.apply(pruning.plans[0])
    assert report.count == 1
    assert any("it is the base of step_5.safetensors, which stays" in error for error in report.errors)
    assert same(load(named(tmp_path, 5)), frozen(5))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_pruned_what_stays_is_whole(tmp_path, seed):
    chosen = random.Random(seed)
    for step in range(1, 12):
        base = named(tmp_path, chosen.randrange(1, step)) if step > 1 and chosen.random() < 0.8 else None
        save(named(tmp_path, step), frozen(step, size=200), base=base)
    for last in (6, 3, 1):
        prune(tmp_path, Policy(last=last, best=0, anchor_every=0, steps=frozenset({chosen.randrange(12)})))
        left = find_checkpoints(tmp_path)
        assert all(info.complete for info in left)
        for info in left:
            assert same(load(info.path), frozen(int(info.step.value), size=200))


def test_what_no_rule_knows_keeps_its_base_too(tmp_path):
    chain(tmp_path, 1, 2)
    save(tmp_path / "mine.safetensors", frozen(2), base=named(tmp_path, 1))  # no name of a run
    chain(tmp_path, 3, 4)
    changed(named(tmp_path, 4), lambda texts: texts.update({"ckptctl.base_values": "{"}))  # damaged: that stays
    for step in (5, 6):
        save(named(tmp_path, step), frozen(step))
    (tmp_path / "links").mkdir()
    chain(tmp_path, 7, 8)
    (tmp_path / "links" / "good").symlink_to(named(tmp_path, 8))  # a link leads into it
    for step in (9, 10):
        save(named(tmp_path, step), frozen(step))
    prune(tmp_path, LAST)
    left = {path.name for path in tmp_path.glob("*.safetensors")}
    assert left >= {f"step_{step}.safetensors" for step in (1, 3, 4, 7, 8, 10)} | {"mine.safetensors"}
    assert not {"step_2.safetensors", "step_5.safetensors", "step_6.safetensors", "step_9.safetensors"} & left
    assert same(load(tmp_path / "mine.safetensors"), frozen(2))


def test_what_comes_back_from_the_trash_brings_its_bases(tmp_path, ckptctl):
    chain(tmp_path, 1, 2, 3)
    save(named(tmp_path, 4), frozen(4))
    rules = ("--keep-last", "1", "--anchor-every", "0", "--yes", "--trash-for", "1d")
    assert ckptctl("prune", tmp_path, *rules).status == 0
    assert [info.step.value for info in find_checkpoints(tmp_path)] == [4]
    done = ckptctl("prune", tmp_path, "--restore", "step_3.safetensors")
    assert (done.status, done.out.count("restored")) == (0, 6)
    assert same(load(named(tmp_path, 3)), frozen(3))
    assert len(find_checkpoints(tmp_path)) == 4


def test_the_reason_is_shown(tmp_path, ckptctl):
    chain(tmp_path, 1, 2)
    done = ckptctl("prune", tmp_path, "--keep-last", "1", "--anchor-every", "0", "--dry-run")
    assert "base of step_2.safetensors" in done.out


def test_in_a_bucket(tmp_path):
    bucket("delta")
    chain(tmp_path, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Uploader(tmp_path, "s3://delta/run") as uploader:
            for step in (1, 2):
                uploader.upload(named(tmp_path, step))
    start()
    there = address("s3://delta/run/step_2.safetensors")
    assert verify(there).bytes.value == "verified"
    assert diff(there, named(tmp_path, 2)).equal
    assert [info.bases for info in find_checkpoints(there.parent)] == [(), ("step_1.safetensors",)]
