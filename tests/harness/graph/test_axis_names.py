"""Names of the axes of an error, for any shape in which an engine shows a tensor."""

import pytest

from lockstep.harness.graph.axis_names import axes_in_words

TURNED = "(tokens, heads, head_dim)"
PRODUCT = "(tokens, heads * head_dim)"
SCORES = "(heads, tokens, cells)"


@pytest.mark.parametrize(
    ("names", "whole", "shape", "said"),
    [
        (TURNED, (1, 32, 8, 16), (32, 8, 16), TURNED),
        (TURNED, (1, 32, 8, 16), (32, 128), PRODUCT),
        (TURNED, (1, 1, 8, 16), (1, 128), PRODUCT),
        (TURNED, (1, 1, 8, 16), (1, 8, 16), TURNED),
        (TURNED, (1, 32, 8, 16), (256, 16), "(tokens * heads, head_dim)"),
        (TURNED, (1, 32, 8, 16), (1, 32, 8, 16), TURNED),
        (TURNED, (1, 32, 8, 16), (4096,), "(tokens * heads * head_dim)"),
        (PRODUCT, (1, 1, 32, 128), (32, 128), PRODUCT),
        (PRODUCT, (1, 1, 32, 128), (32, 8, 16), TURNED),
        ("(tokens, width)", (1, 1, 32, 128), (1, 32, 128), "(tokens, width)"),
        (SCORES, (1, 8, 32, 40), (256, 40), "(heads * tokens, cells)"),
        (SCORES, (1, 8, 32, 256), (8, 32, 40), SCORES),  # only the used cells are shown
    ],
)
def test_neighbouring_axes_are_named_together(
    names: str, whole: tuple[int, ...], shape: tuple[int, ...], said: str
) -> None:
    assert axes_in_words(names, whole, shape) == said


@pytest.mark.parametrize("shape", [(64, 64), (2, 2048), (8, 32, 4, 4)])
def test_shape_that_splits_an_axis_has_no_names(shape: tuple[int, ...]) -> None:
    assert axes_in_words(TURNED, (1, 32, 8, 16), shape) is None
