"""What was saved comes back, exactly; what was damaged does not."""

from __future__ import annotations

import collections
import random
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from ckptctl.errors import CorruptError, UnsupportedError, UsageError
from ckptctl.model import DTYPES, TensorInfo
from ckptctl.training import reading
from ckptctl.training.loading import UnverifiedWarning, latest_good, load
from ckptctl.training.saving import save
from tests.samples import CORPUS
from tests.training.test_saving import training


def same(one, other) -> bool:
    """Whether two states are equal in type, structure and every bit."""
    if isinstance(one, torch.Tensor):
        alike = type(one) is type(other) and one.dtype == other.dtype and one.requires_grad == other.requires_grad
        flat = [x.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
        return alike and one.shape == other.shape and torch.equal(*flat)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or repr(one) == repr(other) == "nan")


def test_a_whole_training_state_comes_back(tmp_path):
    state = training()
    save(tmp_path / "s.safetensors", state)
    found = load(tmp_path / "s.safetensors")
    assert same(found, state)
    torch.set_rng_state(found["rng"])


def test_every_kind_of_value_comes_back(tmp_path):
    w = torch.randn(6, 4)
    state = {
        "od": collections.OrderedDict(b=1, a=2), "t": (1, [2.5, None], "é", b"\x00"), "s": {1, 2}, "f": frozenset("a"),
        "c": 1 + 2j, "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"),
        "nan": float("nan"), "inf": -float("inf"), "zero": -0.0, "big": 2**70, 5: "int", ("a", 1): True, None: 0,
        "long": list(range(1000)), "bytes": bytes(9000), "text": "x" * 100_000, "arr": np.arange(6, dtype=np.int16),
        "view": w.T, "slice": w[1:, ::2], "scalar": torch.tensor(3), "empty": torch.zeros(0, 3), "bool": torch.tensor([True]),
        "bf16": w.bfloat16(), "f8": w.to(torch.float8_e4m3fn), "c64": torch.randn(2, dtype=torch.complex64),
        "conj": torch.randn(2, dtype=torch.complex64).conj(), "param": torch.nn.Parameter(w.clone(), requires_grad=False),
        "grad": torch.ones(2, requires_grad=True),
    }  # fmt: skip
    save(tmp_path / "s.safetensors", state)
    found = load(tmp_path / "s.safetensors")
    assert same(found, state), [key for key in state if not same(found.get(key), state[key])]


def test_l15_numpy_scalars_become_plain_numbers(tmp_path):
    save(tmp_path / "s.safetensors", {"lr": np.float64(0.1), "step": np.int64(5), "flag": np.bool_(True)})
    assert same(load(tmp_path / "s.safetensors"), {"lr": 0.1, "step": 5, "flag": True})


def test_tied_tensors_stay_tied(tmp_path):
    w = torch.randn(8)
    save(tmp_path / "s.safetensors", {"model": {"a": w, "b": w}, "step": 1})
    found = load(tmp_path / "s.safetensors")["model"]
    assert found["a"].data_ptr() == found["b"].data_ptr()


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_never_handed_out(seed, tmp_path):
    path = tmp_path / "s.safetensors"
    save(path, training())
    raw = bytearray(path.read_bytes())
    chosen = random.Random(seed)
    raw[chosen.randrange(len(raw))] ^= 1 << chosen.randrange(8)
    path.write_bytes(raw)
    with pytest.raises((CorruptError, UnsupportedError)):
        load(path)


def test_without_a_digest_it_warns_once_and_strict_refuses(tmp_path):
    path = tmp_path / "s.safetensors"
    save(path, {"w": torch.ones(3)})
    path.with_name("s.safetensors.sha256").unlink()
    with pytest.warns(UnverifiedWarning, match="nothing is on record") as caught:
        assert same(load(path), {"w": torch.ones(3)})
    assert len(caught) == 1
    with pytest.raises(UnsupportedError, match="strict was asked for"):
        load(path, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path, verify=False)


def test_other_formats_are_loaded_too(tmp_path):
    state = training()
    torch.save(state, tmp_path / "s.pt")
    with pytest.raises(Warning, match="nothing"), warnings.catch_warnings():
        warnings.simplefilter("error")
        load(CORPUS / "torch_save" / "no_crc32.pt")
    assert same(load(tmp_path / "s.pt"), state)
    model = load(CORPUS / "deepspeed" / "zero2_bf16_2ranks", verify=False)
    assert model["module"]["embed.weight"].dtype == torch.float32
    with pytest.raises(UnsupportedError, match="one rank's part"):
        load(CORPUS / "fsdp" / "fsdp1_dtensor_2ranks" / "checkpoint-100-rank0.pt")


def test_of_a_run_the_newest_good_one(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path / f"step_{step}.safetensors", {"step": step, "w": torch.full((4,), float(step))})
    raw = bytearray((tmp_path / "step_3.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "step_3.safetensors").write_bytes(raw)
    with pytest.warns(UserWarning, match=r"step_3\.safetensors is passed over"):
        assert load(tmp_path)["step"] == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no checkpoint that is whole"):
        latest_good(tmp_path / "empty")


def test_l07_what_latest_points_at_is_not_trusted(tmp_path):
    for step in (200, 300):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is only one process
            dcp.save({"model": {"w": torch.ones(4)}}, checkpoint_id=tmp_path / f"step-{step}", no_dist=True)
    (tmp_path / "step-300" / ".metadata").unlink()
    (tmp_path / "latest").symlink_to("step-300")
    with pytest.warns(UserWarning, match="step-300 is passed over"):
        assert latest_good(tmp_path).name == "step-200"


def test_the_same_bytes_as_another_type_or_shape_are_of_that():
    known = torch.arange(6, dtype=torch.float32)
    for dtype, shape in (("F32", (2, 3)), ("I32", (6,)), ("I16", (3, 4)), ("F64", (3,))):
        wanted = TensorInfo(name="x", dtype=DTYPES[dtype], shape=shape, pieces=())
        found = reading._shared(known, wanted)
        assert same(found, known.view(getattr(torch, DTYPES[dtype].torch)).view(shape))
        assert found.data_ptr() == known.data_ptr()
