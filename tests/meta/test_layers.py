"""A lower package never imports a higher package, not even inside a function."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.places import LOCKSTEP, ROOT, package_files

FOLDERS = {"lockstep": LOCKSTEP, "tests": ROOT / "tests"}
OURS = tuple(FOLDERS)
IMPORTS = (ast.Import, ast.ImportFrom)

# From the lowest layer to the highest. A file belongs to the longest matching name. Packages in one
# row may not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("lockstep.engine",),
    ("lockstep", "lockstep.harness"),  # the packages themselves are empty
    ("lockstep.harness.examples",),  # separate programs
    ("lockstep.harness.redaction",),
    ("lockstep.harness.records", "lockstep.harness.sites"),
    (
        *("lockstep.harness.exit_codes", "lockstep.harness.known", "lockstep.harness.synth"),
        *("lockstep.harness.processes", "lockstep.harness.judging"),
    ),
    ("lockstep.harness.adapters", "lockstep.harness.acid"),
    (
        *("lockstep.harness.answers", "lockstep.harness.report"),
        *("lockstep.harness.mutants", "lockstep.harness.honest"),
        "lockstep.harness.samplers",
    ),
    ("lockstep.harness.asking", "lockstep.harness.originals"),
    ("lockstep.harness.foreign", "lockstep.harness.real_models"),
    ("lockstep.harness.protocol",),
    ("lockstep.harness.dumps", "lockstep.harness.http"),
    ("lockstep.harness.context",),
    ("lockstep.harness.shadow",),
    ("lockstep.harness.graph",),
    ("lockstep.harness.locate",),
    ("lockstep.harness.suites",),
    ("lockstep.harness.check",),
    ("lockstep.harness.bisect", "lockstep.harness.parallel"),
    ("lockstep.harness.blackbox",),
    ("lockstep.harness.bench",),
    ("lockstep.harness.runs",),
    ("lockstep.harness.damage", "lockstep.harness.fuzzers", "lockstep.harness.catalogue"),
    ("lockstep.harness.diagnosis", "lockstep.harness.selftest"),
    ("lockstep.api",),
    ("lockstep.golden",),  # golden commands are part of the command line, so this layer is below it
    ("lockstep.harness.cli",),
    ("lockstep.harness.entry",),
    ("lockstep.__main__",),
    ("tests",),
)
# adapters and suites are found by name on demand, and some are in higher layers: the engine that
# computes along a graph, wrong engines, honest engines, and suites
DISCOVERIES = (
    ("lockstep", "lockstep.api"),  # `lockstep.Adapter` is imported on first use
    ("lockstep.harness.adapters", "lockstep.harness.mutants"),
    ("lockstep.harness.adapters", "lockstep.harness.honest"),
    ("lockstep.harness.adapters", "lockstep.harness.graph.engine"),
    ("lockstep.harness.context.suite", "lockstep.harness.suites"),
)

ENGINE_MAY = {"numpy", "numba", "llvmlite", "regex"}  # llvmlite is part of numba
ONLY_ADAPTERS = {"llama_cpp", "gguf"}
PROGRAMS = "lockstep.harness.foreign.programs."  # these run in the environments of other engines
ONLY_CLI = {"rich", "typer", "click"}


def module_name(path: Path) -> str:
    (top,) = (folder for folder in FOLDERS.values() if path.is_relative_to(folder))
    parts = path.relative_to(top.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return [*package_files(), *sorted((ROOT / "tests").rglob("*.py"))]


MODULES = {module_name(path) for path in sources()}


def imported(module: str, tree: ast.Module, *, package: bool = False) -> Iterator[str]:
    """Yield every module that the file imports, at any place in the file.

    A string that equals the name of one of our modules counts as an import, because it may be an
    argument of `import_members` or `import_module`.
    """
    for node in ast.walk(tree):
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
    """Return a description of each forbidden import of the file."""
    found, top, own = [], module.partition(".")[0], unit_of(module)
    tree = ast.parse(source)
    for name in imported(module, tree, package=package):
        root = name.partition(".")[0]
        if root in OURS:
            other = unit_of(name)
            allowed = height(other) < height(own) or other == own
            if not allowed and name != own:
                found.append(f"{module} imports {name}, which is not below it")
            continue
        if own == "lockstep.engine" and root not in ENGINE_MAY | sys.stdlib_module_names:
            found.append(f"{module} imports {root}; the engine uses {sorted(ENGINE_MAY)} only")
        asks = own == "lockstep.harness.adapters" or module.startswith(PROGRAMS)
        if top != "tests" and root in ONLY_ADAPTERS and not asks:
            found.append(f"{module} imports {root}; only harness/adapters does")
        if top != "tests" and root in ONLY_CLI and own != "lockstep.harness.cli":
            found.append(f"{module} imports {root}; only harness/cli talks to a terminal")
    if top != "tests" and own not in ("lockstep.harness.cli", "lockstep.harness.examples"):
        found += [f"{module} prints in line {line}" for line in printing(tree)]
    return found


def printing(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of lines that print, by print(...), sys.stdout, sys.stderr or a Console."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("print", "Console"):
            yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr.strip("_") in ("stdout", "stderr"):
            yield from [node.lineno] if getattr(node.value, "id", "") == "sys" else []


def without_discoveries(found: list[str]) -> list[str]:
    excused = {f"{a} imports {b}, which is not below it" for a, b in DISCOVERIES}
    return [text for text in found if text not in excused]


def test_no_package_imports_a_higher_package() -> None:
    """One test checks all files, because a thousand tests would take longer."""
    found = [
        text
        for path in sources()
        for text in violations(
            module_name(path), path.read_text(), package=path.name == "__init__.py"
        )
    ]
    assert len(MODULES) > 500
    assert without_discoveries(found) == []


def circle_in(sources_of: dict[str, str]) -> list[str]:
    """Return modules that import each other in a circle, including imports for type checks."""
    names = {}
    for module, source in sources_of.items():
        statements = [n for n in ast.walk(ast.parse(source)) if isinstance(n, IMPORTS)]
        found = imported(module, ast.Module(body=statements, type_ignores=[]))
        names[module] = {name for name in found if name != module and name in sources_of}
    try:
        TopologicalSorter(names).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_have_no_import_cycle() -> None:
    found = {}
    for path in sources():
        name = module_name(path)
        # packages import their members on demand
        if path.name != "__init__.py" and not name.startswith("tests"):
            found[name] = path.read_text()
    assert circle_in(found) == []


def test_import_cycle_is_found() -> None:
    pair = {"lockstep.harness.records": "from lockstep.harness import sites"}
    pair["lockstep.harness.sites"] = "def f():\n    from lockstep.harness import records"
    assert set(circle_in(pair)) == set(pair)


@pytest.mark.parametrize("row", [unit for row in LAYERS for unit in row])
def test_every_layer_exists(row: str) -> None:
    assert (LOCKSTEP.parent / row.replace(".", "/")).is_dir() or row in MODULES


@pytest.mark.parametrize(("a", "b"), DISCOVERIES)
def test_every_exception_is_still_needed(a: str, b: str) -> None:
    path = LOCKSTEP.parent / a.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert f"{a} imports {b}, which is not below it" in violations(a, path.read_text())


def full_name(module: str) -> str:
    return module if module == "tests.models" else f"lockstep.{module}"


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        ("engine.weights", "import lockstep.harness.records", "not below"),
        ("engine.weights", "from lockstep.harness import records", "not below"),
        ("engine.weights", "def f():\n    from lockstep.harness.records import Site", "not below"),
        ("engine.weights", "import jinja2", "the engine uses"),
        ("engine.ops.fast.ops", "import scipy.special", "the engine uses"),
        ("harness.records", "from lockstep.harness.judging.compare import largest", "not below"),
        (
            "harness.judging.compare",
            "from lockstep.harness.processes.wire import Link",
            "not below",
        ),
        (
            "harness.judging.judge",
            "if True:\n    import lockstep.harness.locate.locate",
            "not below",
        ),
        ("harness.locate.locate", "from lockstep.harness.suites.trace import Trace", "not below"),
        ("harness.locate.locate", "from ..suites import trace", "not below"),
        ("harness.check.check", "import lockstep.harness.cli.terminal", "not below"),
        ("harness.context.runner", "import_members('lockstep.harness.suites')", "not below"),
        ("harness.context.runner", "importlib.import_module('lockstep.harness.cli')", "not below"),
        ("golden.store", "from lockstep.harness.cli import main", "not below"),
        ("harness.cli.terminal", "import tests.models", "not below"),
        (
            "harness.judging.judge",
            "from lockstep.harness.report.jsonl import ReportWriter",
            "not below",
        ),
        (
            "harness.context.runner",
            "for p in ('lockstep.harness.suites',): import_members(p)",
            "not below",
        ),
        ("harness.judging.judge", "import llama_cpp", "only harness/adapters"),
        (
            "harness.suites.metadata",
            "from gguf import GGUFReader",
            "only harness/adapters",
        ),
        ("golden.diff", "from rich.table import Table", "only harness/cli"),
        ("harness.check.check", "def f():\n    print('x')", "prints in line 2"),
        ("harness.check.check", "import sys\nsys.stdout.write('x')", "prints in line 2"),
        ("engine.weights", "import sys\nw = sys.stderr", "prints in line 2"),
        ("golden.diff", "c = Console()", "prints in line 1"),
    ],
)
def test_violation_is_found(module: str, source: str, says: str) -> None:
    (found,) = violations(full_name(module), source)
    assert says in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "engine.weights",
            "import mmap\nimport numpy as np\nfrom lockstep.engine.trace import Probe",
        ),
        ("engine.architectures.llama", "from .base import Architecture"),
        ("harness.judging.judge", "from lockstep.harness.judging import tolerances"),
        ("harness.suites.trace", "from lockstep.harness.locate.locate import locate"),
        ("harness.suites.decode", "from lockstep.harness.suites.logits import compared"),
        ("harness.adapters.gguf_py.adapter", "def f():\n    import gguf"),
        ("harness.report.text", "from lockstep.harness.judging.judge import SiteFinding"),
        ("harness.cli", "import rich\nprint(1)"),
        ("golden.verify", "import lockstep.harness.check.check"),
        ("tests.models", "import llama_cpp\nprint(1)"),
    ],
)
def test_allowed_import_is_not_a_violation(module: str, source: str) -> None:
    assert violations(full_name(module), source) == []


def test_engine_may_not_import_an_oracles_package() -> None:
    assert len(violations("lockstep.engine.weights", "import gguf")) == 2


def test_file_outside_all_layers_is_noticed() -> None:
    with pytest.raises(LookupError, match="no place"):
        violations("bench.speed", "")


def test_a_worker_of_llama_cpp_starts_without_a_compiler() -> None:
    """Importing numba takes longer than starting the rest of a worker, and tests start hundreds of
    workers."""
    code = (
        "import sys, lockstep.harness.asking.worker, lockstep.harness.adapters.llama_cpp.adapter; "
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
