"""Functions are named by their action; a bare participle (`said`, `checked`) names no action."""

import ast

from tests.places import LOCKSTEP, package_files

# hooks of wrong engines are keywords of rows, named by what they replace
HOOKS = LOCKSTEP / "harness" / "mutants"
SOURCES = [each for each in package_files() if HOOKS not in each.parents]
# verbs and nouns with the ending of a participle
OTHERS = {"embed", "need", "seed", "feed", "speed"}
IRREGULAR = {
    *("said", "told", "held", "kept", "made", "given", "taken", "found", "shown", "known", "sent"),
    *("built", "written", "drawn", "seen", "chosen", "brought", "grown", "thrown", "begun", "lost"),
    *("shrunk", "spoken", "broken", "frozen", "hidden", "meant", "dealt", "paid", "laid", "fed"),
}


def is_participle(name: str) -> bool:
    regular = name.endswith("ed") and name not in OTHERS
    return not name.startswith("_") and "_" not in name and (regular or name in IRREGULAR)


def is_attribute(function: ast.FunctionDef) -> bool:
    """Return True for a property, which names an attribute."""
    return any("property" in ast.unparse(each) for each in function.decorator_list)


def participles(source: str) -> list[str]:
    """Return the public functions and methods of a module whose name is a bare participle."""
    functions = []
    for node in ast.parse(source).body:
        functions += [node, *node.body] if isinstance(node, ast.ClassDef) else [node]
    named = [each for each in functions if isinstance(each, ast.FunctionDef)]
    return [each.name for each in named if is_participle(each.name) and not is_attribute(each)]


def test_functions_are_named_by_verbs_or_nouns() -> None:
    found = [f"{path}: {name}" for path in SOURCES for name in participles(path.read_text())]
    assert len(SOURCES) > 500
    assert found == []


def test_participle_is_found() -> None:
    source = "def said(): ...\nclass A:\n    def kept(self): ...\n    def embed(self): ...\n"
    property_too = "    @property\n    def made(self): ...\n"
    assert participles(source + property_too) == ["said", "kept"]
