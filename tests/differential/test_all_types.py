"""Every matrix type that llama.cpp accepts, from a seeded model to the exit code of a check."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.registry import import_members
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.known import entries
from lockstep.harness.records import EXACT, PRESETS, Settings, Verdict
from tests.all_types import FORMATS, MATRICES, NAMES, WITHOUT_PRODUCT, model_of
from tests.models import with_tensor_type
from tests.plans import plan_of, verdicts_of

import_members("lockstep.engine.quants")
(KNOWN,) = entries("no-product")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types")


def checked(
    path: Path, settings: Settings, engine: str = "reference", **more: Any
) -> list[Verdict]:
    return verdicts_of(plan_of(path, engine, settings=settings, n_tokens=24, n_steps=4, **more))


@pytest.mark.parametrize("type_name", NAMES)
def test_a_seeded_model_of_every_type_conforms(type_name: str, folder: Path) -> None:
    verdicts = checked(model_of(type_name, folder), EXACT)
    excused = [v.detail.get("type") for v in verdicts if v.status == "excused"]
    assert excused == ([] if type_name in known_to_gguf_py() else [type_name])
    assert [v.summary for v in verdicts if v.status not in ("agreed", "excused")] == []
    assert exit_code(verdicts) == 0
    (products,) = (v for v in verdicts if v.suite == "products")
    # an error of one part in 100,000 of a scale shows in every product
    assert products.detail["sees"] < 1e-5
    decoded = [v.summary for v in verdicts if v.suite == "dequant"]
    matrices = 12 if type_name == "F32" else 9  # the norms are F32
    (summary,) = (text for text in decoded if text.startswith(f"{type_name}: "))
    assert f"of {matrices} tensors agree bit for bit" in summary


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != EXACT.name])
@pytest.mark.parametrize("type_name", NAMES)
def test_model_conforms_under_the_other_presets(type_name: str, preset: str, folder: Path) -> None:
    """Suites about reading the file are skipped, because presets do not affect them."""
    suites = ("logits", "decode", "trace", "products")
    verdicts = checked(model_of(type_name, folder), PRESETS[preset], suites=suites)
    assert [v.summary for v in verdicts if v.status != "agreed"] == []
    assert {v.suite for v in verdicts} == set(suites)


def known_to_gguf_py() -> set[str]:
    gguf = pytest.importorskip("gguf", reason="no gguf-py: models of every type were not checked")
    return set(gguf.GGMLQuantizationType.__members__)


@pytest.mark.parametrize("type_name", ["BF16", "Q4_1", "Q8_0", "Q4_K", "IQ2_XS", "NVFP4"])
def test_the_fast_engine_conforms_with_and_without_a_kernel(type_name: str, folder: Path) -> None:
    assert exit_code(checked(model_of(type_name, folder), EXACT, "fast")) == 0


# --- types ------------------------------------------------------------------------------------


def test_remaining_types_are_f64_and_integers() -> None:
    assert {kind.name for kind in WITHOUT_PRODUCT} == {"F64", "I8", "I16", "I32", "I64"}
    assert len(FORMATS) == len(MATRICES) + 5


@pytest.mark.parametrize(("name", "made_as"), KNOWN["retyped"].items())
def test_matrix_without_a_product_is_reported_as_a_crash_of_llama_cpp(
    name: str, made_as: str, folder: Path
) -> None:
    """llama.cpp loads such a file, but its process ends when it looks up the first token.

    Ops of the subject are judged on llama.cpp's graph, which is recorded without being computed.
    """
    path = folder / f"retyped-{name}.gguf"
    with_tensor_type(model_of(made_as, folder), path, "token_embd.weight", type_by_name(name).id)
    verdicts = checked(path, EXACT, suites=("logits", "trace"))
    over = f"llama.cpp survives {name}: take it out of {KNOWN['id']} in harness/known"
    assert {v.status for v in verdicts if v.suite == "logits"} == {"crashed"}, over
    assert exit_code(verdicts) == 3
