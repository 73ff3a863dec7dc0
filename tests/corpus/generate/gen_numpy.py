"""Archives of arrays as NumPy writes them, not compressed and compressed.

    python gen_numpy.py OUT      # writes OUT/numpy
"""
import numpy as np
from safetensors.numpy import save_file

from common import fresh, output_dir

KINDS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64")


def arrays():
    generator = np.random.default_rng(1234)
    weight = generator.normal(size=(7, 6)).astype("float32")
    return {
        "embed/weight": weight,
        "embed/bias": generator.normal(size=7).astype("float32"),
        "Head": generator.normal(size=(3, 7)),
        "head": np.zeros((0, 3), "float32"),  # to NumPy another array than Head
        "step": np.int64(1200),
        "by_columns": np.asfortranarray(generator.normal(size=(2, 3, 4)).astype("float32")),
        **{f"kind.{kind}": np.arange(3).astype(kind) for kind in KINDS},
    }


if __name__ == "__main__":
    out = fresh(output_dir(__doc__) / "numpy")
    np.savez(out / "arrays.npz", **arrays())
    np.savez_compressed(out / "compressed.npz", **arrays())
    save_file({name: np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array) for name, array in arrays().items()},
              str(out / "arrays.expected.safetensors"))
    (out / "arrays.expected.safetensors").chmod(0o644)
