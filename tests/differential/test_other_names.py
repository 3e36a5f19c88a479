"""A tensor that is shown under another node's name: the verdict names the right node."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.ggml.base import expect
from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.ways import Honest
from lockstep.harness.locate.other_formulas import PLAIN, OtherFormulas, other_formula
from lockstep.harness.locate.other_names import NEAR, near_nodes, other_name
from lockstep.harness.records import Site
from tests.models import builtin
from tests.recorded import recorded
from tests.shadow_nodes import node, normal, params

RIGHT, OFF, SMALL = (np.arange(8, dtype=np.float32) + n for n in (0.0, 1.0, 1e-4))
A, B, C = (0, 0, 1), (0, 0, 2), (0, 0, 3)
NAMES = {A: "embd", B: "inp_scaled"}


def test_nearest_node_is_named_if_much_nearer() -> None:
    said = other_name(SMALL, A, {A: OFF, B: RIGHT}, NAMES)
    assert said.startswith("the engine shows llama.cpp's inp_scaled (error: 1.4e-05 of")
    assert other_name(SMALL + 0.5, A, {A: OFF, B: RIGHT}, NAMES) == ""  # both nodes are equally far
    assert other_name(SMALL, A, {A: OFF, C: RIGHT}, NAMES) == ""  # no name shows this node
    assert other_name(SMALL, A, {B: RIGHT}, NAMES) == ""  # the value of the node itself is unknown
    assert other_name(SMALL * np.nan, A, {A: OFF, B: RIGHT}, NAMES) == ""


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_tensor_gets_no_other_name(value: float) -> None:
    """llama.cpp's tensors may also be zeros (from a zero bias) or other constants."""
    shown = np.full(8, value, np.float32)
    assert other_name(shown, A, {A: RIGHT, B: shown.copy()}, NAMES) == ""
    assert other_name(shown[:1], A, {A: RIGHT[1:2] * 3, B: shown[:1]}, NAMES) == ""


@pytest.mark.parametrize(
    ("arch", "name", "real"), [("gemma3", "embd", "inp_scaled"), ("qwen3", "Qcur_rope-1", "")]
)
def test_scaled_embeddings_are_recognised_among_near_nodes(
    arch: str, name: str, real: str, tmp_path: Path
) -> None:
    with recorded(arch, tmp_path) as found:
        places = places_by_site(found.program, found.wires)
        names: dict[str, Site] = {str(s): s for s in places if not s.step}
        place = places[names[name]]
        near = near_nodes(found.program, place)
        assert place in near
        assert len(near) <= 2 * NEAR + 1
        run = found.run(Honest())
        shown = run[places[names[real]]] if real else run[place] * np.float32(1.01)
        values = {p: run[p] for p in near if p in run and run[p].shape == shown.shape}
        texts = {p: str(s) for s, p in places.items()}
        said = other_name(shown, place, values, texts)
        assert (f"llama.cpp's {real} " in said) if real else (said == "")


def test_exchanged_axes_are_recognised() -> None:
    """A tensor has the tokens of each head side by side, in the node's shape or in another
    shape."""
    right = np.arange(24, dtype=np.float32).reshape(4, 3, 2)  # (tokens, heads, head_dim)
    shown = np.ascontiguousarray(right.transpose(1, 0, 2))
    said = other_name(shown, A, {A: right.reshape(shown.shape)}, NAMES)
    assert "in another order of axes: with [1, 0, 2] of (3, 4, 2)" in said
    assert other_name(shown + 5, A, {A: right.reshape(shown.shape)}, NAMES) == ""
    assert other_name(right, A, {A: right.copy()}, NAMES) == ""


def shown_of(op: str, *sources: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the values of an engine that rounds once, without a table."""
    held = node(op, np.zeros_like(sources[0]), *sources)
    return expect(held, PLAIN).value.astype(np.float32)


def test_other_function_of_the_same_input_is_named() -> None:
    """BERT is published with erf GELU, but llama.cpp uses tanh GELU. Without the function's name, a
    user would search for a fault that does not exist."""
    x = normal(1, 4, 32)
    right = node("GELU", shown_of("GELU", x), x)
    said = other_formula(right, shown_of("GELU_ERF", x))
    assert said.startswith("the engine shows erf GELU (llama.cpp: tanh GELU) of")
    assert "SiLU" in other_formula(right, shown_of("SILU", x))
    assert other_formula(right, shown_of("GELU", x)) == ""
    assert other_formula(right, shown_of("GELU_ERF", x) + np.float32(0.01)) == ""
    assert other_formula(right, np.full_like(shown_of("GELU", x), np.nan)) == ""


def test_exchanged_gate_factors_are_recognised() -> None:
    gate, up = normal(1, 4, 32), normal(2, 4, 32)
    right = node("SWIGLU", shown_of("SWIGLU", gate, up), gate, up)
    assert "with its two factors exchanged" in other_formula(right, shown_of("SWIGLU", up, gate))
    assert "tanh GELU (llama.cpp" in other_formula(right, shown_of("GEGLU", gate, up))
    assert other_formula(right, shown_of("SWIGLU", gate, up)) == ""
    product = node("MUL", gate * up, gate, up)
    assert other_formula(product, shown_of("SWIGLU", gate, up)) == ""


def with_weights(
    x: NDArray[np.float32], weights: NDArray[np.float32], eps: float, op: str = "RMS_NORM"
) -> tuple[Node, Node]:
    """Return a norm and the product with its weights, as two nodes of llama.cpp."""
    held = node(op, np.zeros_like(x), x, held=params(eps))
    norm = node(op, expect(held, PLAIN).value.astype(np.float32), x, held=params(eps))
    product = node("MUL", norm.value * weights, norm.value[0, 0], weights)
    first, second = product.sources
    assert first is not None
    read = replace(first, producer=norm.index)
    return norm, replace(product, index=norm.index + 1, sources=(read, second))


@pytest.mark.parametrize(("eps", "theirs"), [(1e-6, 1e-5), (1e-5, 1e-6), (1e-5, 0.0)])
def test_other_eps_is_named_if_the_weighted_norm_is_shown(
    eps: float, theirs: float, tmp_path: Path
) -> None:
    file = GgufFile.open(builtin("f32", tmp_path))  # no weight is read
    x, weights = normal(3, 4, 32) / 8, normal(4, 1, 32)
    right, wrong = with_weights(x, weights, eps), with_weights(x, weights, theirs)

    def said(shown: NDArray[np.float32]) -> str:
        formulas = OtherFormulas(file, {each.place for each in right}, right[1].place, shown)
        for each in right:
            formulas.look(each)
        return formulas.text

    words = f"the norm with eps {theirs:g} (llama.cpp: {eps:g}) of the same input"
    assert words in said(wrong[1].value)
    assert "LayerNorm" in said(with_weights(x, weights, eps, "NORM")[1].value)
    assert said(right[1].value) == ""
    assert said(right[1].value * np.float32(1.001)) == ""
    assert words in other_formula(right[0], wrong[0].value)


def test_two_indistinguishable_eps_are_both_named() -> None:
    """An engine with eps 1e-8 was once reported to have eps 0."""
    x, weights = normal(3, 4, 32), normal(4, 1, 32)
    right, _ = with_weights(x, weights, 1e-3)
    wrong, _ = with_weights(x, weights, 1e-8)
    text = other_formula(right, wrong.value)
    assert "eps 0 (llama.cpp" in text
    assert "eps 1e-08 (llama.cpp" in text
    assert "1e-05" not in text
