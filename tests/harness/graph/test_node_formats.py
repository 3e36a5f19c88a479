"""Products with activations in another format are honest if all products of a weight type use one
format."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.node import Node, Operand, layout
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect
from lockstep.harness.graph.node_formats import TRIED, ProductFormats
from lockstep.harness.judging.conversions import families_of_builds
from lockstep.harness.records import Site
from lockstep.harness.synth.generator import MAKERS, stream
from tests.shadow_nodes import node, normal

BUILD = Build(lanes=16)
FAMILIES = list(families_of_builds(BUILD))
FORMATS = [family[0] for family in FAMILIES]
BF16, F16, ROW = len(FORMATS) - 2, len(FORMATS) - 1, len(FORMATS) - 4
NONE = None  # no format explains the difference


def product(seed: int, kind: str = "Q8_0", rows: int = 3) -> Node:
    raw = np.frombuffer(MAKERS[kind](stream(seed, kind), 5 * 2, 1.0), np.uint8)
    made = node(
        "MUL_MAT", np.zeros((rows, 5), np.float32), normal(seed, 5, 64), normal(seed, rows, 64)
    )
    dtype, shape, _ = layout(kind, (64, 5, 1, 1))
    value = np.ndarray(shape, dtype, raw)
    weight = Operand(name="w", type=kind, ne=(64, 5, 1, 1), value=value)
    return replace(made, sources=(weight, made.sources[1]))


def shown(given: Node, number: int | None) -> NDArray[Any]:
    build = BUILD if number is None else FORMATS[number]
    value = np.asarray(expect(given, build).value, np.float32)
    return value * np.float32(1.01) if number is None else value


def accepted(numbers: list[int | None], kinds: list[str] | None = None) -> list[bool]:
    """Return for each product True if it is accepted. The engine computes product i with the format
    `numbers[i]`. If `numbers[i]` is None, it computes the product wrongly."""
    formats = ProductFormats(build=BUILD)
    sites = [Site(step=0, layer=i, name="x") for i in range(len(numbers))]
    for i, (site, number) in enumerate(zip(sites, numbers, strict=True)):
        given = product(i, (kinds or ["Q8_0"] * len(numbers))[i])
        formats.count(given)
        formats.is_given(site, given, shown(given, number))
    found = formats.accept_format()
    return [site in found for site in sites]


@pytest.mark.parametrize("number", [BF16, F16, ROW])
def test_one_format_of_all_products_is_honest(number: int) -> None:
    assert accepted([number] * 3) == [True] * 3


def test_two_products_in_two_formats_are_two_faults() -> None:
    assert accepted([BF16, ROW]) == [False, False]


def test_single_product_in_another_format_is_a_fault() -> None:
    assert accepted([ROW, BF16, ROW, ROW]) == [True, False, True, True]


def test_single_other_format_among_llama_cpps_products_is_a_fault() -> None:
    formats = ProductFormats(build=BUILD)
    for seed in range(9):
        formats.count(product(seed))
    given, site = product(9), Site(step=0, layer=0, name="x")
    formats.count(given)
    assert formats.is_given(site, given, shown(given, BF16))
    assert not formats.accept_format()


def test_single_and_many_rows_may_have_different_formats() -> None:
    formats = ProductFormats(build=BUILD)
    sites = []
    for seed in range(4):
        for rows, number in ((1, ROW), (3, BF16)):
            given, site = product(seed, rows=rows), Site(step=rows, layer=seed, name="x")
            formats.count(given)
            assert formats.is_given(site, given, shown(given, number))
            sites.append(site)
    assert formats.accept_format() == set(sites)


def test_each_weight_type_may_have_its_own_format() -> None:
    assert accepted([ROW, ROW, BF16, BF16], ["Q8_0", "Q8_0", "Q4_0", "Q4_0"]) == [True] * 4


def test_product_without_a_format_changes_no_other_judgement() -> None:
    assert accepted([ROW, NONE, ROW]) == [True, False, True]
    assert accepted([ROW, NONE]) == [False, False]


def test_honest_product_after_wrong_products_reveals_the_format() -> None:
    wrong: list[int | None] = [NONE] * TRIED
    assert accepted([ROW, *wrong, *[ROW] * (TRIED + 1)]) == [
        True,
        *[False] * TRIED,
        *[True] * (TRIED + 1),
    ]


def test_unquantised_weights_have_no_other_format() -> None:
    formats = ProductFormats(build=BUILD)
    given = node("MUL_MAT", np.zeros((3, 5), np.float32), normal(1, 5, 64), normal(2, 3, 64))
    formats.count(given)
    assert not formats.is_given(Site(step=0, layer=0, name="x"), given, given.value)
    assert not formats.products
