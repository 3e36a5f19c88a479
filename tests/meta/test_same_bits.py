"""Vectors must not depend on the CPU: code that writes them uses neither BLAS nor libm.

numpy and the C library have different code for different vector units; engine/ops/functions.py and
`in_order` do not. Additions, quotients, roots and numpy's own sums are the same everywhere.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import LOCKSTEP

BLAS = ("dot", "vdot", "inner", "outer", "matmul", "einsum", "tensordot", "linalg", "vecdot")
FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "power", "float_power"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "arctan", "arctan2", "hypot", "cbrt"),
    *("erf", "erfc", "pow", "gamma", "lgamma", "atan", "atan2", "vectorize"),
)
FORMULAS = "attention build experts flash_mirror gates near norms softmax"
PLACES = (
    *("engine/ops/ggml", "engine/ops/fused", "golden"),
    *(f"engine/ops/{name}.py" for name in FORMULAS.split()),
)
EXCEPTIONS = {
    "engine/ops/build.py: np.matmul": "what judges graphs; vectors are written with `in_order`",
}


def files() -> list[Path]:
    found = [p for place in PLACES for p in [LOCKSTEP / place, *(LOCKSTEP / place).rglob("*.py")]]
    return [path for path in found if path.suffix == ".py"]


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("np", "math") and node.attr in (*BLAS, *FUNCTIONS):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("math", "numpy"):
            yield from (a.name for a in node.names if a.name in (*BLAS, *FUNCTIONS))
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            if isinstance(node.op, ast.MatMult):
                yield "@"
            if isinstance(node.op, ast.Pow) and not is_constant(node):
                yield "**"


def is_constant(node: ast.AST) -> bool:
    return not any(isinstance(part, ast.Name) for part in ast.walk(node))


def test_truth_uses_neither_blas_nor_the_c_library() -> None:
    assert len(files()) > 30
    found = {
        f"{path.relative_to(LOCKSTEP).as_posix()}: {what}"
        for path in files()
        for what in offences(ast.parse(path.read_text()))
    }
    assert found == EXCEPTIONS.keys()  # an unneeded exception must be removed


@pytest.mark.parametrize(
    "text",
    ["a @ b", "a @= b", "np.dot(a, b)", "np.exp(x)", "math.log(x)", "from math import erf", "a**b"],
)
def test_each_cpu_dependent_function_is_found(text: str) -> None:
    assert list(offences(ast.parse(text)))
