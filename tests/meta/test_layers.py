"""Imports point one way. A package below never knows one above, not even inside a function."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine

PACKAGES = Path(engine.__file__).parents[1]  # of a checkout, or where it is installed
TESTS = Path(__file__).resolve().parents[1]
FOLDERS = {**{top: PACKAGES / top for top in ("engine", "harness", "golden")}, "tests": TESTS}
OURS = tuple(FOLDERS)

# From the bottom up. A file belongs to the longest name that it starts with; what stands in one
# row may not import its neighbours.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("engine",),
    ("harness", "harness.records", "harness.allocator"),  # the package itself is empty
    (
        "harness.comparable",
        "harness.compare",
        "harness.stored",
        "harness.tolerances",
        "harness.gguf_writer",
        "harness.wire",
        "harness.processes",
        "harness.downloads",
        "harness.known",
        "harness.limits",
        "harness.known_failures",
        "harness.exit_codes",
        "harness.sites",
    ),
    ("harness.ahead", "harness.designs", "harness.engine_process", "harness.candidates"),
    ("harness.rope_designs",),
    ("harness.synth", "harness.adapters", "harness.judge", "harness.report"),
    ("harness.real_models", "harness.twin", "harness.acid"),
    (
        "harness.mutants",
        "harness.honest",
        "harness.worker",
        "harness.noise",
        "harness.environments",
        "harness.answers",
    ),
    ("harness.session", "harness.facts", "harness.findings", "harness.foreign"),
    ("harness.protocol", "harness.node_maps"),
    ("harness.dumps", "harness.http"),
    ("harness.runner",),
    ("harness.suites.base",),
    ("harness.relations", "harness.further_runs", "harness.repeats"),
    ("harness.shadow",),
    ("harness.graph",),
    ("harness.honest_runs",),
    ("harness.locate_nodes",),
    ("harness.locate_segments",),
    ("harness.locate",),
    ("harness.suites",),
    ("harness.check", "harness.ties"),
    ("harness.bisect", "harness.row_files"),
    ("harness.inputs", "harness.children", "harness.file_state"),
    ("harness.adapters.replay", "harness.work_process"),
    ("harness.parallel", "harness.cluster_worker"),
    ("harness.cluster",),
    ("harness.blackbox",),
    ("harness.run", "harness.quick", "harness.doctor"),
    ("harness.pytest_plugin", "harness.matrix"),
    ("harness.dump", "harness.shadow.run", "harness.fuzzers", "harness.bench", "harness.damage"),
    ("harness.foreign.findings",),
    ("harness.selftest_tokens",),
    ("harness.clean_cases", "harness.catalogue"),
    ("harness.diagnosis",),
    ("harness.selftest",),
    ("golden",),  # its commands are the command line's, so it comes before
    ("harness.cli",),
    ("harness.entry",),
    ("tests",),
)
# explained in words to people: the only part of a report that knows what a finding is
OVERRIDES = {"harness.report.text": ("harness.judge",)}
# `adapter_class` finds wrong engines and honest ones by name like all others: by discovery, when
# asked for one
DISCOVERIES = (
    ("harness.adapters", "harness.mutants"),
    ("harness.adapters", "harness.honest"),
)

ENGINE_MAY = {"numpy", "numba", "llvmlite", "regex"}  # llvmlite is numba's own lower half
ONLY_ADAPTERS = {"llama_cpp", "gguf"}
ONLY_CLI = {"rich", "typer", "click"}


def module_name(path: Path) -> str:
    (top,) = (folder for folder in FOLDERS.values() if path.is_relative_to(folder))
    parts = path.relative_to(top.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS.values() for path in folder.rglob("*.py"))


MODULES = {module_name(path) for path in sources()}


def imported(module: str, source: str, *, package: bool = False) -> Iterator[str]:
    """Every module that the source imports, wherever it does.

    Discovery counts as well: a string that is exactly the name of a module of ours is taken for an
    argument of `import_members` or `import_module`, however it gets there.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".") if package else module.split(".")[:-1]
                kept = here[: len(here) - node.level + 1]
                base = ".".join([*kept, *filter(None, [node.module])])
            for alias in node.names:  # `from package import module` imports the module
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base
        elif isinstance(node, ast.Constant) and node.value in MODULES and "." in node.value:
            yield node.value


def unit_of(module: str) -> str:
    known = [u for row in LAYERS for u in row if module == u or module.startswith(f"{u}.")]
    if not known:
        raise LookupError(f"{module} has no place in LAYERS")
    return max(known, key=len)


def height(unit: str) -> int:
    return next(i for i, row in enumerate(LAYERS) if unit in row)


def violations(module: str, source: str, *, package: bool = False) -> list[str]:
    """What the file may not do, in words."""
    found, top, own = [], module.partition(".")[0], unit_of(module)
    for name in imported(module, source, package=package):
        root = name.partition(".")[0]
        if root in OURS:
            other = unit_of(name)
            allowed = height(other) < height(own) or other == own
            allowed |= other in OVERRIDES.get(module, ())
            if not allowed and name != own:
                found.append(f"{module} imports {name}, which is not below it")
            continue
        if top == "engine" and root not in ENGINE_MAY | sys.stdlib_module_names:
            found.append(f"{module} imports {root}; the engine uses {sorted(ENGINE_MAY)} only")
        if top != "tests" and root in ONLY_ADAPTERS and own != "harness.adapters":
            found.append(f"{module} imports {root}; only harness/adapters does")
        if top != "tests" and root in ONLY_CLI and own != "harness.cli":
            found.append(f"{module} imports {root}; only harness/cli talks to a terminal")
    if top != "tests" and own != "harness.cli":
        found += [f"{module} prints in line {line}" for line in printing(source)]
    return found


def printing(source: str) -> Iterator[int]:
    """Lines that print: print(...), sys.stdout and sys.stderr, a Console."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("print", "Console"):
            yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr.strip("_") in ("stdout", "stderr"):
            yield from [node.lineno] if getattr(node.value, "id", "") == "sys" else []


def without_discoveries(found: list[str]) -> list[str]:
    excused = {f"{a} imports {b}, which is not below it" for a, b in DISCOVERIES}
    return [text for text in found if text not in excused]


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    package = path.name == "__init__.py"
    found = violations(module_name(path), path.read_text(), package=package)
    assert without_discoveries(found) == []


@pytest.mark.parametrize("row", [unit for row in LAYERS for unit in row])
def test_every_layer_exists(row: str) -> None:
    assert (PACKAGES / row.replace(".", "/")).is_dir() or row in MODULES


@pytest.mark.parametrize(("a", "b"), DISCOVERIES)
def test_every_excuse_is_still_needed(a: str, b: str) -> None:
    path = PACKAGES / a.replace(".", "/") / "__init__.py"
    assert f"{a} imports {b}, which is not below it" in violations(a, path.read_text())


@pytest.mark.parametrize(("module", "others"), OVERRIDES.items())
def test_every_override_is_still_needed(module: str, others: tuple[str, ...]) -> None:
    path = PACKAGES / (module.replace(".", "/") + ".py")
    assert set(others) <= set(imported(module, path.read_text()))


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        ("engine.weights", "import harness.records", "not below"),
        ("engine.weights", "from harness import compare", "not below"),
        ("engine.weights", "def f():\n    from harness.records import Site", "not below"),
        ("engine.weights", "import jinja2", "the engine uses"),
        ("engine.ops.fast", "import scipy.special", "the engine uses"),
        ("harness.records", "from harness.compare import largest", "not below"),
        ("harness.compare", "from harness.tolerances import Bound", "not below"),
        ("harness.judge", "if True:\n    import harness.locate", "not below"),
        ("harness.locate", "from harness.suites.trace import Trace", "not below"),
        ("harness.locate", "from .suites import trace", "not below"),
        ("harness.check", "import harness.cli.terminal", "not below"),
        ("harness.runner", "import_members('harness.suites')", "not below"),
        ("harness.runner", "importlib.import_module('harness.cli')", "not below"),
        ("golden.store", "from harness.cli import main", "not below"),
        ("harness.cli.terminal", "import tests.models", "not below"),
        ("harness.report.jsonl", "from harness.judge import SiteFinding", "not below"),
        ("harness.runner", "for p in ('harness.suites',): import_members(p)", "not below"),
        ("harness.judge", "import llama_cpp", "only harness/adapters"),
        ("harness.suites.metadata", "from gguf import GGUFReader", "only harness/adapters"),
        ("golden.diff", "from rich.table import Table", "only harness/cli"),
        ("harness.check", "def f():\n    print('x')", "prints in line 2"),
        ("harness.check", "import sys\nsys.stdout.write('x')", "prints in line 2"),
        ("engine.weights", "import sys\nw = sys.stderr", "prints in line 2"),
        ("golden.diff", "c = Console()", "prints in line 1"),
    ],
)
def test_a_violation_is_seen(module: str, source: str, says: str) -> None:
    (found,) = violations(module, source)
    assert says in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.weights", "import mmap\nimport numpy as np\nfrom engine.trace import Probe"),
        ("engine.architectures.llama", "from .base import Architecture"),
        ("harness.judge", "from harness import tolerances"),
        ("harness.suites.trace", "from harness.locate import locate"),
        ("harness.suites.decode", "from harness.suites.logits import compared"),
        ("harness.adapters.gguf_py", "def f():\n    import gguf"),
        ("harness.report.text", "from harness.judge import SiteFinding"),
        ("harness.cli", "import rich\nprint(1)"),
        ("golden.verify", "import harness.check"),
        ("tests.models", "import llama_cpp\nprint(1)"),
    ],
)
def test_what_is_allowed_is_not_a_violation(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_an_oracles_package_is_refused_to_the_engine_twice() -> None:
    assert len(violations("engine.weights", "import gguf")) == 2


def test_a_file_without_a_place_is_not_passed_over() -> None:
    with pytest.raises(LookupError, match="no place"):
        violations("bench.speed", "")
