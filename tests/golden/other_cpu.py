"""Program that makes a few vectors again, and reports the vectors that differ.

It runs in a separate process, because numpy, BLAS and numba read the CPU's features once, when they
are loaded. So it also reports the features that numpy found.
"""

import importlib
import json
import sys
from collections.abc import Iterator

import numpy as np

from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.ops.vectors import cases_of, operations, write_case
from lockstep.golden.store import DEFAULT_ROOT, Tensors
from lockstep.golden.suites.base import SEED, AskedEngine, source_of
from lockstep.golden.suites.dot import GoldenDot
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT

# one op of each family, and each function
OPS = (
    *("SOFT_MAX", "LOG", "TANH", "SIN", "GELU_ERF", "XIELU", "ROPE", "MUL_MAT", "MUL_MAT_ID"),
    *("FLASH_ATTN_EXT", "LIGHTNING_INDEXER", "SSM_SCAN", "GATED_LINEAR_ATTN", "RMS_NORM"),
    *("matmul", "gemm_gptq", "paged_decode_attention", "qk_norm_rope", "moe_gate_up_silu"),
)
PRODUCTS = ("F32", "Q4_K")


def features() -> tuple[list[str], list[str]]:
    """Return the CPU features that numpy has code for, and the features of this CPU that it
    uses."""
    two = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
    core = importlib.import_module(f"numpy.{'_core' if two else 'core'}._multiarray_umath")
    return core.__cpu_dispatch__, [name for name, on in core.__cpu_features__.items() if on]


def made() -> Iterator[tuple[str, Tensors]]:
    """Yield a few vectors made on this CPU, without the oracle's answers."""
    operations()
    session = Runner().open("reference", None, EXACT)
    source = source_of(AskedEngine(engine="reference", session=session), lambda _: None)
    for op in OPS:
        tensors: Tensors = {}
        for case in cases_of(op, SEED):
            tensors |= write_case(op, case)[1]
        yield f"ops/{op.lower()}", tensors
    for kind in PRODUCTS:
        yield f"dot/{kind.lower()}", GoldenDot().make(source, kind).tensors


def main() -> None:
    entries = {entry.path: entry for entry in read_manifest(DEFAULT_ROOT)}
    count, others = 0, []
    for path, tensors in made():
        held = load_vectors(DEFAULT_ROOT, entries[f"{path}.json"], entries).tensors
        for name in tensors.keys() - {"llama_cpp"}:
            count += 1
            if np.ascontiguousarray(tensors[name]).tobytes() != held[name].tobytes():
                others.append(f"{path}: {name}")
    said = {"made": count, "others": sorted(others), "features": features()[1]}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
