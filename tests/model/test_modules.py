"""The module tree: folding, totals, ties."""

from __future__ import annotations

from ckptctl.model import DTYPES, TensorInfo, module_tree


def info(name: str, shape: tuple[int, ...] = (2, 3), dtype: str = "F32") -> TensorInfo:
    return TensorInfo(name=name, dtype=DTYPES[dtype], shape=shape, pieces=())


def outline(modules):
    return [(m.name, m.last, m.count, outline(m.children)) for m in modules]


def test_equal_layers_fold_and_others_do_not():
    names = [f"h.{i}.{part}.w" for i in range(5) for part in ("attn", "mlp")]
    tensors = [info(name, (3, 3) if name.startswith("h.2") else (2, 3)) for name in names]
    (h,) = module_tree(tensors, tied={})
    assert [(m.name, m.last, m.count) for m in h.children] == [("0", "1", 2), ("2", "", 1), ("3", "4", 2)]
    assert h.numel == 5 * 2 * 6 + 2 * 3
    assert h.tensors == 10


def test_numbers_must_follow_each_other():
    (m,) = module_tree([info(f"m.{i}.w") for i in (0, 1, 3, 4, 6)], tied={})
    assert [(c.name, c.last) for c in m.children] == [("0", "1"), ("3", "4"), ("6", "")]


def test_dtype_shape_and_names_tell_layers_apart():
    tensors = [info("m.0.w"), info("m.1.w", dtype="BF16"), info("m.2.v", dtype="BF16"), info("m.3.v", (6,), "BF16")]
    (m,) = module_tree(tensors, tied={})
    assert all(child.count == 1 for child in m.children)
    assert m.dtypes == ("F32", "BF16")


def test_experts_fold_inside_layers_that_fold():
    (m,) = module_tree([info(f"l.{i}.e.{j}.w") for i in range(4) for j in range(8)], tied={})
    assert outline(m.children) == [("0", "3", 4, [("e", "", 1, [("0", "7", 8, [("w", "", 1, [])])])])]
    assert m.numel == 4 * 8 * 6


def test_a_tied_tensor_counts_once_and_names_the_other():
    tree = module_tree([info("wte.w"), info("lm_head.w")], tied={"lm_head.w": "wte.w"})
    assert [(m.name, m.numel, dict(m.tied)) for m in tree] == [("wte", 6, {}), ("lm_head", 0, {"lm_head.w": "wte.w"})]


def test_a_name_may_be_tensor_and_module_at_once():
    (a,) = module_tree([info("a"), info("a.b")], tied={})
    assert (a.tensors, a.numel, [c.name for c in a.children]) == (2, 12, ["b"])


def test_names_of_any_depth_are_taken():
    (module,) = module_tree([info("." * 100_000)], tied={})
    assert module.tensors == 1


def test_order_is_that_of_first_occurrence():
    assert [m.name for m in module_tree([info("z.a"), info("b.a"), info("z.c")], tied={})] == ["z", "b"]
