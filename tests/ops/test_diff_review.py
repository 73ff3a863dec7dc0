"""What readers of `diff` found: equal where something differs, differences that are none, wrong numbers, hangs."""

from __future__ import annotations

import collections
import json
import math
import re
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import save_file

from ckptctl.errors import UsageError
from ckptctl.ops.diff import Kind, Options, diff
from ckptctl.tensors.tolerance import Tolerance
from tests.samples import CORPUS


def report(tmp_path, one, other, **options):
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    return diff(tmp_path / "a.pt", tmp_path / "b.pt", options=Options(**options))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantized_tensors_and_their_scales(tmp_path):
    t = torch.arange(8.0)
    one = {"w": torch.quantize_per_tensor(t, 0.1, 3, torch.qint8)}
    assert report(tmp_path, one, one).equal
    assert (
        report(tmp_path, one, {"w": torch.quantize_per_tensor(-t, 0.1, 3, torch.qint8)}).tensors[0].kind is Kind.VALUES
    )
    scaled = {"w": torch._make_per_tensor_quantized_tensor(one["w"].int_repr(), 0.2, 5)}
    found = {value.path: (value.a, value.b) for value in report(tmp_path, one, scaled).values}
    assert found == {"w.scale": (0.1, 0.2), "w.zero_point": (3, 5)}
    scales = [torch.quantize_per_channel(t.reshape(2, 4), torch.tensor(s), torch.zeros(2), 0, torch.qint8)
              for s in ([0.1, 0.2], [0.1, 0.3])]  # fmt: skip
    channels = [torch._make_per_channel_quantized_tensor(scales[0].int_repr(), one.q_per_channel_scales(),
                one.q_per_channel_zero_points(), 0) for one in scales]  # fmt: skip
    assert not report(tmp_path, {"w": channels[0]}, {"w": channels[1]}).equal


def ranks(path, second, lr=0.1):
    path.mkdir()
    for rank, w in enumerate((torch.ones(4), second)):
        state = {"model": {"w": w}, "step": 1, "lr": lr if rank else 0.1}
        torch.save(state, path / f"model_rank{rank}.pt")
    return path


def test_copies_and_values_of_other_ranks(tmp_path):
    a = ranks(tmp_path / "a", torch.ones(4))
    assert diff(a, ranks(tmp_path / "same", torch.ones(4))).equal
    changed = diff(a, ranks(tmp_path / "b", torch.zeros(4)))
    assert [one.kind for one in changed.tensors] == [Kind.VALUES]
    values = diff(a, ranks(tmp_path / "c", torch.ones(4), lr=0.2)).values
    assert [(one.path, one.a, one.b) for one in values] == [("rank_1.lr", None, 0.2)]
    save_file({"w": torch.ones(4)}, tmp_path / "merged.safetensors")
    model = diff(a, tmp_path / "merged.safetensors")
    assert model.unchanged == 1
    unlike = diff(tmp_path / "b", tmp_path / "merged.safetensors")
    assert (unlike.tensors[0].kind, unlike.unread) == (Kind.UNREAD, True)


def test_all_blocks_of_one_rank_count(tmp_path):
    from ckptctl.model import DTYPES, Piece, TensorInfo
    from ckptctl.ops.diff.pairing import Pair
    from ckptctl.ops.diff.values_of import compared
    from ckptctl.storage.byterange import MemoryFile

    def shard(*values):
        pieces = tuple(
            Piece(range=MemoryFile(v.numpy().tobytes(), path=tmp_path).range(), offsets=(8 * i,), shape=(4,))
            for i, v in enumerate(values)
        )
        return TensorInfo(name="w", dtype=DTYPES["F32"], shape=(16,), pieces=pieces)

    key = (None, "w")
    a = shard(torch.full((4,), 1000.0), torch.full((4,), 0.001))
    b = shard(torch.full((4,), 1000.5), torch.full((4,), 0.101))
    found = compared(Pair(key, key, a, b), Options(tolerance=Tolerance(rtol=1e-3, atol=0)), lambda _: None)
    assert (found.kind, found.measures.numel, found.measures.changed, found.measures.beyond) == (Kind.VALUES, 8, 8, 4)
    assert found.measures.worst == (0,)


class Opaque:
    def __init__(self, number):
        self.number = number

    def __getstate__(self):
        return self.number

    def __setstate__(self, number):
        self.number = number


class Mine(dict):
    pass


def with_attribute(value):
    made = Mine(x=1)
    made.note = value
    return made


def tagged(value):
    made = torch.nn.Parameter(torch.ones(2))
    made.tag = value
    return made


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        (Opaque(1), Opaque(2), "x.(state)"),
        (with_attribute(1), with_attribute(2), "x.note"),
        (collections.defaultdict(int), collections.defaultdict(list), "x.(0)"),
        (tagged(1), tagged(2), "x.tag"),
        ({"s": {"b", "a", "c"}}, {"s": {"b", "a", "d"}}, "x.s.(items).2"),
        (Opaque(1), None, "x"),
    ],
    ids=["state", "subclass", "factory", "tensor", "set", "none"],
)
def test_what_the_walk_over_values_passed_over(one, other, path, tmp_path):
    model = {"w": torch.ones(2), "v": torch.ones(2)}
    found = report(tmp_path, {"model": model, "x": one}, {"model": model, "x": other})
    if path == "x.(0)":
        assert found.values
    else:
        assert [value.path for value in found.values][:1] == [path]
    assert not found.equal
    assert report(tmp_path, {"model": model, "x": one}, {"model": model, "x": one}).equal


def test_sets_have_no_order_and_what_refers_to_itself_equals_its_copy(tmp_path):
    code = "import sys, torch; torch.save({'w': torch.ones(2), 's': {'alpha', 'beta', 'gamma', 'delta'}}, sys.argv[1])"
    for seed in (1, 2):
        env = {"PYTHONHASHSEED": str(seed), "PATH": ""}
        subprocess.run([sys.executable, "-c", code, tmp_path / f"{seed}.pt"], check=True, env=env)
    assert diff(tmp_path / "1.pt", tmp_path / "2.pt").equal
    loop: list[object] = [1]
    loop.append(loop)
    assert report(tmp_path, {"w": torch.ones(2), "l": loop}, {"w": torch.ones(2), "l": loop}).equal


def test_nothing_selected_is_not_equal(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    path = tmp_path / "a.safetensors"
    for options in ({"include": ("nosuch*",)}, {"exclude": ("*",)}):
        with pytest.raises(UsageError, match="leave no tensor"):
            diff(path, path, options=Options(**options))
    from ckptctl.model import Component

    with pytest.raises(UsageError, match="neither side has a component optimizer"):
        diff(path, path, options=Options(only=Component.OPTIMIZER))
    assert (
        diff(path, path, options=Options(strip_prefix=("model.",)))
        .notes[0]
        .startswith("--strip-prefix model.: no name")
    )


def test_what_globs_leave_out_is_said(tmp_path):
    one, other = ({"model": {"w": torch.ones(2)}, "step": step} for step in (1, 2))
    found = report(tmp_path, one, other, include=("*",))
    assert found.equal
    assert found.notes == ("plain values and metadata were not compared, since --include and --exclude choose tensors",)


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_tolerance_is_a_number(ckptctl, option, number):
    path = CORPUS / "transformers" / "single_llama" / "model.safetensors"
    assert ckptctl("diff", path, path, option, number).status == 2


def test_a_closed_pipe_keeps_the_exit_status(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        save_file({f"w{i}": torch.full((2,), value) for i in range(3000)}, tmp_path / f"{name}.safetensors")
    command = [sys.executable, "-m", "ckptctl", "diff", "--top", "3000", "a.safetensors", "b.safetensors"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (1, b"")
    process.stderr.close()


def test_another_component_is_another_name(tmp_path):
    found = report(tmp_path, {"model": {"w": torch.ones(3)}}, {"ema": {"w": torch.ones(3)}})
    assert [(one.old, one.new) for one in found.renamed] == [("model", "ema")]
    assert not found.equal
    assert report(tmp_path, {"state_dict": {"w": torch.ones(3)}}, {"w": torch.ones(3)}).equal


def test_texts_of_every_shard(tmp_path):
    for name, text in (("a", "x"), ("b", "y")):
        (tmp_path / name).mkdir()
        for number, key in enumerate("pq", 1):
            save_file({key: torch.ones(2)}, tmp_path / name / f"model-{number:05d}-of-00002.safetensors",
                      {"k": text if number == 1 else "same"})  # fmt: skip
        weights = {key: f"model-{number:05d}-of-00002.safetensors" for number, key in enumerate("pq", 1)}
        (tmp_path / name / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    assert [one.path for one in diff(tmp_path / "a", tmp_path / "b").metadata] == ["k.0"]


def test_integers_of_two_types_are_apart(tmp_path):
    one = {"w": torch.tensor([2**60], dtype=torch.int64)}
    other = {"w": torch.tensor([2**60 + 1], dtype=torch.uint64)}
    found = report(tmp_path, one, other, tolerance=Tolerance(), dtype_tolerant=True)
    assert (found.equal, found.tensors[0].measures.beyond) == (False, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_casts_of_torch_from_float64(dtype, tmp_path):
    torch.manual_seed(0)
    wide = torch.randn(300_000, dtype=torch.float64)
    assert report(tmp_path, {"w": wide}, {"w": wide.to(dtype)}, dtype_tolerant=True).equal


def test_lone_scalars_and_empty_tensors_are_renamed_with_the_rest(tmp_path):
    bn = {"w": torch.randn(4), "b": torch.randn(4), "n": torch.tensor(7), "empty": torch.zeros(0, 3)}
    one, other = ({f"{prefix}.bn.{name}": value for name, value in bn.items()} for prefix in ("enc", "encoder"))
    found = report(tmp_path, one, other)
    assert [(one.old, one.new, one.count) for one in found.renamed] == [("enc", "encoder", 4)]
    assert (found.only_a, found.only_b) == ((), ())


@pytest.mark.parametrize(
    ("a", "b", "norms", "relative"),
    [
        ([1e200], [2e200], (1e200, 2e200, 1e200), 1.0),
        ([1.0, 1e-150], [1.0, 2e-150], (1.0, 1.0, 1e-150), 1e-150),
        ([1e-200], [1.0], (1e-200, 1.0, 1.0), 1e200),
        ([1e308] * 3, [0.0] * 3, (1e308 * 3**0.5, 0.0, 1e308 * 3**0.5), 1.0),
        ([-1.7e308], [1.7e308], (1.7e308, 1.7e308, math.inf), 2.0),
    ],
)
def test_norms_of_any_size(a, b, norms, relative, tmp_path):
    one, other = (torch.tensor(values, dtype=torch.float64) for values in (a, b))
    found = report(tmp_path, {"m.w": one, "m.v": one}, {"m.w": other, "m.v": other})
    for measures in (found.tensors[0].measures,):
        assert (measures.norm_a, measures.norm_b, measures.norm_delta) == pytest.approx(norms, rel=1e-12)
        assert measures.relative_l2 == pytest.approx(relative, rel=1e-12)
        assert measures.mean_abs == pytest.approx(abs(b[-1] - a[-1]) if len(a) != 2 else 5e-151)
    assert found.modules[0].changed == 2


def test_a_type_without_a_sign_has_no_changed_signs(tmp_path):
    one, other = (torch.tensor([1.0, value]).to(torch.float8_e8m0fnu) for value in (0.5, 2.0))
    measures = report(tmp_path, {"w": one}, {"w": other}).tensors[0].measures
    assert (measures.changed, measures.signs, measures.ulps) == (1, 0, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_tensors_of_any_shape(tmp_path):
    empty = torch.empty(0, 3)
    assert report(tmp_path, {"w": empty.to_sparse()}, {"w": empty}).equal
    huge = [
        torch.sparse_coo_tensor([[0, 199_999], [5, 199_999]], [1.0, value], (200_000, 200_000)) for value in (2.0, 5.0)
    ]
    started = time.monotonic()
    measures = report(tmp_path, {"w": huge[0]}, {"w": huge[1]}).tensors[0].measures
    assert time.monotonic() - started < 20
    assert (measures.changed, measures.worst, measures.max_abs) == (1, (199_999, 199_999), 3)
    assert measures.numel == 200_000**2


def test_many_names_that_each_changed_in_another_way(tmp_path):
    one = {f"layer_{i}.layer_{i}.kernel": torch.full((2,), float(i)) for i in range(3000)}
    other = {f"layer_{i}.kernel": torch.full((2,), float(i)) for i in range(3000)}
    started = time.monotonic()
    found = report(tmp_path, one, other)
    assert time.monotonic() - started < 20
    assert sum(one.count for one in found.renamed) == 3000


def test_a_layer_that_became_nan_comes_first(ckptctl, tmp_path):
    one = {f"h.{i}.w": torch.randn(4) for i in range(15)}
    other = {name: value * 1.01 for name, value in one.items()} | {"h.7.w": torch.full((4,), math.nan)}
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    out = ckptctl("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--top", "1").out
    assert re.search(r"^h\.7 +1 of 1 +not finite", out, re.MULTILINE)
    assert "~ h.7.w" in out


def test_scalars_show_both_values_and_long_values_where_they_differ(ckptctl, tmp_path):
    for name, value, text in (("a", 1.0, "x"), ("b", 2.0, "y")):
        state = {"model": {"w": torch.tensor(value)}, "text": "a" * 500 + text, "raw": bytes(20) + text.encode()}
        torch.save(state, tmp_path / f"{name}.pt")
    out = ckptctl("diff", tmp_path / "a.pt", tmp_path / "b.pt").out
    assert "max |Δ| 1, mean 1 · 1 → 2" in out
    assert "values: text: …aaaaaaaaaaaaaaaax at character 500 → …aaaaaaaaaaaaaaaay" in out
    assert "values: raw: …0000000000000000 78" not in out
    assert re.search(r"values: raw: \S*78 at (byte|character) \d+ → \S*79", out), out


def test_it_stops_at_once(tmp_path):
    """The first of five tensors differs; of the rest, which are large, next to nothing is read."""
    for name, first in (("a", 1.0), ("b", 2.0)):
        state = {"a": torch.full((1,), first)} | {f"z{i}": torch.zeros(16 << 20) for i in range(4)}
        save_file(state, tmp_path / f"{name}.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", options=Options(first=True))
    assert (found.complete, found.read < 64 << 20) == (False, True)
