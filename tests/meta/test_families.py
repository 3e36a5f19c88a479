"""Each file has one member: the rules of every family, checked for all registered members."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.activations.base import ActivationFormat
from lockstep.engine.architectures.base import Architecture
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import TYPES, type_by_name
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import NO_PRODUCT, WeightFormat
from lockstep.engine.registry import Registered
from lockstep.engine.samplers.base import Sampler
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.bench.base import Bench
from lockstep.harness.catalogue.models import ARCHITECTURES, SPECIAL
from lockstep.harness.context.suite import Suite
from lockstep.harness.fuzzers.base import Fuzzer
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.sites import SITES
from lockstep.harness.synth.any_arch import variants
from lockstep.harness.synth.builtin import BUILTIN
from tests.places import LOCKSTEP

FAMILIES: dict[str, type[Any]] = {
    "lockstep.engine.activations": ActivationFormat,
    "lockstep.engine.quants": WeightFormat,
    "lockstep.engine.samplers": Sampler,
    "lockstep.engine.tokenizers": Tokenizer,
    "lockstep.engine.architectures": Architecture,
    "lockstep.harness.adapters": Adapter,
    "lockstep.harness.bench": Bench,
    "lockstep.harness.fuzzers": Fuzzer,
    "lockstep.harness.honest": HonestEngine,
    "lockstep.harness.mutants": Mutant,
    "lockstep.harness.suites": Suite,
}


SHARED = ("__init__", "base", "resume")  # modules without members


def members(package: str) -> list[str]:
    """Return every file of the folder, and the files adapter.py and fuzzer.py of its subfolders."""
    folder = LOCKSTEP.parent / package.replace(".", "/")
    names = [path.stem for path in sorted(folder.glob("*.py")) if path.stem not in SHARED]
    names += [f"{path.parent.name}.{path.stem}" for path in sorted(folder.glob("*/adapter.py"))]
    names += [f"{path.parent.name}.{path.stem}" for path in sorted(folder.glob("*/fuzzer.py"))]
    return [f"{package}.{name}" for name in names]


MEMBERS = [(package, module) for package in FAMILIES for module in members(package)]
for _, each in MEMBERS:
    importlib.import_module(each)
FORMATS = sorted(WeightFormat.family.values(), key=lambda cls: cls.type_id)
MUTANTS = [cls for cls in Adapter.family.values() if issubclass(cls, Mutant)]


def registered(package: str, module: str) -> list[type[Any]]:
    return [cls for cls in FAMILIES[package].family.values() if cls.__module__ == module]


def defined(package: str, module: str) -> list[type[Any]]:
    """Return the classes of the family that the file defines, registered or not."""
    found = vars(importlib.import_module(module)).values()
    classes = (v for v in found if isinstance(v, type) and v.__module__ == module)
    return [cls for cls in classes if issubclass(cls, FAMILIES[package])]


def is_shared(package: str, module: str) -> bool:
    """Return True if another file of the folder or its subfolders imports from this file."""
    folder = LOCKSTEP.parent / package.replace(".", "/")
    nodes = (
        node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    )
    return any(isinstance(node, ast.ImportFrom) and node.module == module for node in nodes)


def holds_one_member(package: str, module: str) -> bool:
    """Return True if the file holds one member, or is shared by members and defines no class of the
    family. Wrong engines of one group may share a file, because each has only a few lines."""
    if found := registered(package, module):
        groups = {getattr(cls, "group", "") for cls in found}
        return len(found) == 1 or (len(groups) == 1 and groups != {""})
    return defined(package, module) == [] and is_shared(package, module)


def test_each_file_registers_one_member() -> None:
    assert [module for package, module in MEMBERS if not holds_one_member(package, module)] == []


def test_unnamed_class_is_not_shared() -> None:
    assert defined("lockstep.harness.mutants", "lockstep.harness.mutants.base") == [Mutant]
    assert not is_shared("lockstep.harness.mutants", "lockstep.harness.mutants.norms")


def test_members_have_a_docstring() -> None:
    docs = {module: importlib.import_module(module).__doc__ or "" for _, module in MEMBERS}
    assert [module for module, text in docs.items() if len(text.split()) < 4] == []


@pytest.mark.parametrize("package", FAMILIES)
def test_no_family_is_empty_and_every_member_is_found_by_its_name(package: str) -> None:
    found = [cls for module in members(package) for cls in registered(package, module)]
    assert found
    assert all(FAMILIES[package].member(cls.name) is cls for cls in found)


@pytest.mark.parametrize("package", FAMILIES)
def test_unknown_name_lists_the_known_names_or_their_number(package: str) -> None:
    base = FAMILIES[package]
    with pytest.raises(Exception, match=r"no .* named 'Q9_9'") as refusal:
        base.member("Q9_9")
    said = str(refusal.value)
    many = f"{len(base.family)} in all" in said and "(near: " in said
    assert many or all(name in said for name in base.family)


def test_registered_name_is_unique() -> None:
    class Family(Registered):
        pass

    class First(Family, name="one"):
        pass

    with pytest.raises(TypeError, match="'one' is already"):

        class Second(Family, name="one"):
            pass

    assert Family.family == {"one": First}


# --- weight formats -------------------------------------------------------------------------


def test_weight_formats_have_ggmls_ids_and_sizes() -> None:
    ours = {cls.name: (cls.type_id, cls.weights, cls.layout.itemsize) for cls in FORMATS}
    kinds = [type_by_name(name) for name in ours]
    assert ours == {kind.name: (kind.id, kind.block, kind.bytes) for kind in kinds}
    assert {TYPES[cls.type_id].name for cls in FORMATS} == {*ours}


@pytest.mark.parametrize("cls", FORMATS, ids=lambda cls: cls.name)
def test_weight_format_names_its_activations_or_has_no_product(
    cls: type[WeightFormat],
) -> None:
    raw = np.zeros(256 // cls.weights * cls.layout.itemsize, np.uint8)
    weight = Weight("w", cls, (1, 256), raw)
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256)
    if cls.vec_dot_type == NO_PRODUCT:
        with pytest.raises(Unsupported, match=f"no product with a matrix of type {cls.name}"):
            Mirror().activations(x, weight)
        return
    assert cls.vec_dot_type in ActivationFormat.family
    seen = Mirror().activations(x, weight)
    assert seen.shape == x.shape
    assert np.abs(seen - x).max() < 0.02


def test_activation_formats_match_those_of_weights_and_ggmls_sizes() -> None:
    family = ActivationFormat.family.values()
    ours = {cls.name: (cls.type_id, cls.block, cls.layout.itemsize) for cls in family}
    assert {*ours} <= {kind.vec_dot_type for kind in FORMATS}
    kinds = [type_by_name(name) for name in ours]
    assert ours == {kind.name: (kind.id, kind.block, kind.bytes) for kind in kinds}


def test_layouts_name_each_field_and_leave_no_gap() -> None:
    for cls in FORMATS:
        sizes = [kind.itemsize for kind, _ in (cls.layout.fields or {}).values()]
        assert sizes, cls.name
        assert sum(sizes) == cls.layout.itemsize, cls.name


# --- wrong engines --------------------------------------------------------------------------


def fault_of(cls: type[Mutant]) -> str:
    """Return a wrong engine's missing attribute or unknown name; "" if there is none."""
    if not cls.name.startswith("mutant:") or not all((cls.mistake, cls.group, cls.effect)):
        return "it lacks a name, a mistake, a group or an effect"
    if cls.site in Suite.family:
        return ""  # no op of these is wrong
    if (recipe := BUILTIN.get(cls.shows_on)) is None:
        name, _, quant = cls.shows_on.removeprefix("arch:").partition(":")
        known = name in {**variants(), **SPECIAL, **ARCHITECTURES}
        # these results have llama.cpp's names of nodes
        return "" if known and quant in ("", *WeightFormat.family) else f"no model {cls.shows_on}"
    # embd, result_norm and result_output are outside the layers
    outside = cls.site in ("embd", "result_norm", "result_output")
    if cls.site not in SITES or (cls.layer is None) is not outside:
        return f"no place {cls.site} in layer {cls.layer}"
    return "" if cls.layer is None or 0 <= cls.layer < recipe.n_layer else f"no layer {cls.layer}"


def test_wrong_engines_state_their_place_and_suites() -> None:
    faults = {cls.name: fault_of(cls) for cls in MUTANTS}
    assert {name: fault for name, fault in faults.items() if fault} == {}


def test_wrong_engines_make_distinct_mistakes() -> None:
    assert len(MUTANTS) >= 12
    assert len({cls.mistake for cls in MUTANTS}) == len(MUTANTS)


def test_sources_of_wrong_engines_name_a_project_and_a_number() -> None:
    threads = [cls.source for cls in MUTANTS if cls.source]
    assert all(re.fullmatch(r"[\w.\-]+ #\d+(, [\w.\-]+ #\d+)*", text) for text in threads)


def lines_of(node: ast.stmt) -> int:
    assert node.end_lineno
    return node.end_lineno - node.lineno + 1


def test_wrong_engines_are_small_changes() -> None:
    for module in sorted({cls.__module__ for cls in MUTANTS}):
        source = Path(importlib.import_module(module).__file__ or "").read_text()
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
        assert [node.name for node in classes if lines_of(node) > 30] == [], module


# --- suites ---------------------------------------------------------------------------------


def test_suites_have_distinct_positions_in_the_order() -> None:
    orders = [suite.order for suite in Suite.family.values()]
    assert len(set(orders)) == len(orders)
