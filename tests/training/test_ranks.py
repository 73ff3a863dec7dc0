"""Several processes save into one directory, and load from it: all of it or nothing, the same on every one."""

from __future__ import annotations

import signal
import time
import warnings

import pytest
import torch

from ckptctl.errors import CorruptError, ExistsError, UnsupportedError, UsageError
from ckptctl.layouts import open_checkpoint
from ckptctl.training import AsyncSaver, load, save
from tests.training.processes import begin, ended, names, run

REPLICATED = """
torch.manual_seed(1)
state = {"model": {"w": torch.randn(4, 5), "b": torch.zeros(3)}, "step": 7, "data": {"used": 10 + rank}}
state["model"]["tied"] = state["model"]["w"]
torch.manual_seed(rank)
state["rng"] = {"torch": torch.get_rng_state()}
"""
SHARDED = """
from torch.distributed.fsdp import fully_shard
def made():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.3), torch.nn.Linear(7, 1))
    fully_shard(model)
    return TrainingState(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))
def trained(training, steps):
    for _ in range(steps):
        loss = training.model(torch.randn(4, 5)).square().mean()
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    return loss.item()
"""


def test_what_all_share_is_written_once_and_each_gets_its_own(tmp_path):
    said = run(
        f"""{REPLICATED}
digest = save(path, state, metadata={{"note": "x"}})
back = load(path)
assert all(torch.equal(back["model"][name], one) for name, one in state["model"].items())
assert back["model"]["tied"] is back["model"]["w"]
assert torch.equal(back["rng"]["torch"], state["rng"]["torch"])
assert back["data"] == {{"used": 10 + rank}} and back["step"] == 7
print(digest)
""",
        2,
        tmp_path / "step_7",
    )
    assert said[0].out == said[1].out
    assert names(tmp_path / "step_7") == {
        "manifest.json", "rank_00000.safetensors", "rank_00001.safetensors", "shared.safetensors",
    }  # fmt: skip
    shared, own = (tmp_path / "step_7" / name for name in ("shared.safetensors", "rank_00001.safetensors"))
    assert shared.stat().st_size < own.stat().st_size < 6000 + 1024  # the random state is 5 kB, the weights are shared
    assert {one.metadata.get("note") for one in open_checkpoint(tmp_path / "step_7").files} == {"x"}


@pytest.mark.parametrize("world", [1, 3])
def test_what_is_shared_loads_among_any_number(world, tmp_path):
    run(f"{REPLICATED}\nsave(path, state)", 2, tmp_path / "step_7")
    load_it = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    back = load(path)
print(back["step"], back["data"]["used"], back["model"]["w"].sum().item(), [str(one.message) for one in caught])
"""
    if world == 1:
        with pytest.warns(UserWarning, match="saved by 2 processes and is loaded by 1"):
            assert load(tmp_path / "step_7")["data"] == {"used": 10}
    else:
        said = run(load_it, world, tmp_path / "step_7")
        assert [one.out.split()[1] for one in said] == ["10", "11", "10"]
        assert all("saved by 2 processes and is loaded by 3" in one.out for one in said)


def test_a_sharded_training_goes_on_bit_for_bit_and_its_whole_loads_anywhere(tmp_path, ckptctl):
    done = run(
        f"""{SHARDED}
training = made()
torch.manual_seed(rank)
trained(training, 3)
training.step = 3
with AsyncSaver() as saver:
    saver.save(path, training.capture())
    alone = trained(training, 3)
again = made()
again.restore(load(path))
assert trained(again, 3) == alone
full = {{name: one.full_tensor() for name, one in again.model.state_dict().items()}}
if rank == 0:
    torch.save(full, path.with_name("full.pt"))
""",
        2,
        tmp_path / "step_3",
    )
    assert len(done) == 2
    with pytest.raises(UnsupportedError, match="saved by 2 processes, loaded by 1") as refused:
        load(tmp_path / "step_3")
    assert "consolidate" in refused.value.hint
    whole = tmp_path / "whole.safetensors"
    assert ckptctl("consolidate", tmp_path / "step_3", "--only", "all", "-o", whole).status == 0
    assert ckptctl("diff", tmp_path / "step_3", whole).status == 0
    alone = load(whole)
    assert (alone["step"], set(alone["rank_1"]["rng"])) == (3, {"python", "numpy", "torch"})
    run(
        f"""{SHARDED}
training = made()
state = load(path)
training.restore(state)
here = training.capture()
for name, one in here["model"].items():
    assert torch.equal(one.full_tensor(), state["model"][name])
for name, one in here["optimizer"]["state"].items():
    assert torch.equal(one["exp_avg"].full_tensor(), state["optimizer"]["state"][name]["exp_avg"])
trained(training, 1)
""",
        3,
        whole,
    )


def test_what_fails_on_one_rank_fails_on_all_and_leaves_nothing(tmp_path):
    said = run(
        f"""{REPLICATED}
if rank == 1:
    state["bad"] = object()
try:
    save(path, state)
except CkptctlError as error:
    print(type(error).__name__, error)
""",
        2,
        tmp_path / "step_7",
    )
    assert said[0].out.startswith("UnsupportedError rank 1: ")
    assert "bad" in said[0].out
    assert "bad" in said[1].out
    assert not (tmp_path / "step_7").exists()


FULL = """
import ckptctl.training.ranked as ranked
from ckptctl.errors import NoSpaceError
write = ranked.carry_out
def full(outputs, *rest):
    if rank == 1 and os.environ.get("FULL"):
        raise NoSpaceError(f"{outputs.files[0].path}: the disk became full; nothing was written")
    return write(outputs, *rest)
ranked.carry_out = full
"""


def test_a_disk_that_is_full_for_one_rank_leaves_the_old_state(tmp_path):
    run(f"{REPLICATED}\nsave(path, state)", 2, tmp_path / "last")
    before = names(tmp_path / "last")
    said = run(
        f"""{FULL}{REPLICATED}
os.environ["FULL"] = "1"
try:
    save(path, state | {{"step": 8}})
except CkptctlError as error:
    print(type(error).__name__, error)
assert load(path)["step"] == 7
del os.environ["FULL"]
save(path, state | {{"step": 8}})
assert load(path)["step"] == 8
""",
        2,
        tmp_path / "last",
    )
    assert said[0].out.startswith("NoSpaceError rank 1: ")
    assert "the disk became full" in said[1].out
    after = names(tmp_path / "last")
    assert len(after) == len(before)
    assert "rank_00001-2.safetensors" in after


def test_a_directory_that_vanished_is_said_to_have_on_all(tmp_path):
    said = run(
        f"""{REPLICATED}
try:
    save(path, state)
except CkptctlError as error:
    print(type(error).__name__, error)
""",
        2,
        tmp_path / "gone" / "step_7",
    )
    assert all(one.out.startswith("UnreadableError") and "does not exist" in one.out for one in said)


def test_latest_good_is_the_same_on_every_rank(tmp_path):
    """Only rank 0 sees the newer one: the others do as it says."""
    said = run(
        f"""{REPLICATED}
for step in (1, 2):
    save(path / f"step_{{step}}", state | {{"step": step}})
if rank == 0:
    (path / "step_2" / "manifest.json").unlink()
dist.barrier()
import ckptctl.training.loading as loading
if rank == 1:
    loading.newest_good = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(latest_good(path), load(path)["step"], len(caught))
""",
        2,
        tmp_path,
    )
    assert said[0].out == f"{tmp_path / 'step_1'} 1 2\n"
    assert said[1].out == f"{tmp_path / 'step_1'} 1 0\n"


def test_no_run_with_a_whole_one_is_said_on_every_rank(tmp_path):
    (tmp_path / "step_1").mkdir()
    said = run("try:\n    load(path)\nexcept CkptctlError as error:\n    print(error)", 2, tmp_path)
    assert "no checkpoint that is whole" in said[0].out
    assert said[1].out == f"rank 0: {said[0].out}"


WRITER = """
path.mkdir(exist_ok=True)
if rank == 0:
    print("ready", flush=True)
saver = AsyncSaver()
for step in range(1, 100_000):
    state = {"step": step, "shared": torch.full((1 << 16,), float(step)), "own": torch.full((1 << 16,), step + rank / 4)}
    name = "last" if sys.argv[2] == "replaced" else f"step_{step}"
    (saver.save if sys.argv[3] == "background" else save)(path / name, state)
"""


@pytest.mark.parametrize("how", ["at once", "background"])
@pytest.mark.parametrize("name", ["replaced", "new"])
def test_killed_at_any_moment_it_is_the_old_or_the_new(name, how, tmp_path):
    seen = set()
    for turn in range(3):
        processes = begin(WRITER, 2, tmp_path / "run", name, how)
        processes[0].stdout.readline()
        time.sleep(0.15 + 0.11 * turn)
        processes[turn % 2].send_signal(signal.SIGKILL)
        for other in processes:
            other.send_signal(signal.SIGKILL)
        ended(processes)
        for path in (tmp_path / "run").iterdir():
            if not (path / "manifest.json").exists():
                continue
            said = (
                run(
                    """
state = load(path)
assert set(state["shared"].tolist()) == {float(state["step"])}
assert set(state["own"].tolist()) == {state["step"] + rank / 4}
print(state["step"])
""",
                    2,
                    path,
                )
                if turn == 2
                else []
            )
            seen |= {one.out for one in said}
            open_checkpoint(path)
    assert len(seen) >= 1


def test_one_process_may_save_to_a_directory_too(tmp_path):
    state = {"step": 1, "w": torch.arange(5.0)}
    save(tmp_path / "step_1", state)
    assert names(tmp_path / "step_1") == {"manifest.json", "rank_00000.safetensors"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path / "step_1")["w"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    save(tmp_path / "step_1", state | {"step": 2})
    assert load(tmp_path / "step_1")["step"] == 2
    assert names(tmp_path / "step_1") == {"manifest.json", "rank_00000-2.safetensors"}


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(ExistsError, match="notes.txt"):
        save(tmp_path / "other", {"w": torch.ones(1)})
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExistsError, match="not a directory"):
        save(tmp_path / "file", {"w": torch.ones(1)})
    assert (tmp_path / "file").read_text() == "x"


def test_a_block_has_no_place_in_a_file_of_its_own(tmp_path):
    run(
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (world,))
whole, cut = (distribute_tensor(torch.arange(6.0), mesh, [one]) for one in (Replicate(), Shard(0)))
try:
    save(path / f"{rank}.safetensors", {"w": cut})
except CkptctlError as error:
    assert "block" in str(error) and "directory" in error.hint
else:
    raise SystemExit(3)
save(path / f"{rank}.safetensors", {"w": whole})
""",
        2,
        tmp_path,
    )
    assert names(tmp_path) == {f"{rank}.safetensors{more}" for rank in (0, 1) for more in ("", ".sha256")}
    assert load(tmp_path / "0.safetensors")["w"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_weights_that_differ_without_being_blocks_are_not_joined(tmp_path, ckptctl):
    run('save(path, {"model": {"w": torch.full((3,), float(rank))}, "step": 1})', 2, tmp_path / "step_1")
    done = ckptctl("consolidate", tmp_path / "step_1", "-o", tmp_path / "x.safetensors")
    assert done.status == 2
    assert "ranks differ in model.w" in done.err
    with pytest.raises(UnsupportedError, match="loaded by 1"):
        load(tmp_path / "step_1")


@pytest.mark.parametrize("name", ["x.pt", "x.bin", "x.pkl"])
def test_other_suffixes_are_no_directories(name, tmp_path):
    with pytest.raises(UsageError, match="ends in"):
        save(tmp_path / name, {})
    with AsyncSaver() as saver, pytest.raises(UsageError, match="ends in"):
        saver.save(tmp_path / name, {})


@pytest.mark.parametrize("name", ["rank_00000.safetensors", "manifest.json"])
def test_a_flipped_bit_is_found_before_anything_is_handed_out(name, tmp_path):
    save(tmp_path / "step_1", {"w": torch.arange(100.0)})
    path = tmp_path / "step_1" / name
    raw = bytearray(path.read_bytes())
    raw[-20 if name != "manifest.json" else raw.index(b"sha256") + 12] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError):
        load(tmp_path / "step_1")
