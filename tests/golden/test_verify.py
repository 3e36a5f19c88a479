"""`verify` finds the committed goldens intact, and every way to break them."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from safetensors.numpy import load_file, save_file

from lockstep.golden.manifest import NAME, ManifestEntry, manifest_bytes, read_manifest
from lockstep.golden.schemas import FOLDER, schema_of, validator, violations
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden, canonical, inside, parse_json
from lockstep.golden.verify import verify
from tests.golden.folders import copied, edit_json, reseal

ENTRIES = read_manifest(DEFAULT_ROOT)
DOCUMENTS = [entry for entry in ENTRIES if entry.kind != "tensors"]
SCHEMAS = sorted(path.stem for path in FOLDER.glob("*.json"))


def test_the_committed_goldens_are_intact() -> None:
    assert verify() == []


def test_goldens_cover_the_promised_cases() -> None:
    paths = {entry.path.removesuffix(".json") for entry in DOCUMENTS}
    assert {f"logits/{name}" for name in ("f32", "f16", "q8_0", "moe", "stories260K")} <= paths
    assert {"dequant/q8_0", "dequant/q4_0", "tokens/f32", "tokens/stories260K"} <= paths
    assert {"dequant/iq2_xxs", "dequant/f64", "dot/q4_k", "dot/mxfp4"} <= paths
    assert sum(entry.bytes for entry in ENTRIES) < 20 << 20


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_valid(name: str) -> None:
    Draft202012Validator.check_schema(schema_of(name))


# other op files are tested by `verify` anyway
FEW_OPS = ("ops/add.json", "ops/moe_buckets.json", "ops/rope.json")
KEYED = [e for e in DOCUMENTS if e.kind != "ops" or e.path in FEW_OPS]


@pytest.mark.parametrize("entry", KEYED, ids=lambda entry: entry.path)
def test_a_document_obeys_its_schema_and_needs_each_of_its_keys(entry: ManifestEntry) -> None:
    document = json.loads((DEFAULT_ROOT / entry.path).read_text())
    assert entry.schema is not None
    assert list(violations(entry.schema, document)) == []
    for key in document:
        less = {name: value for name, value in document.items() if name != key}
        if key != "llama_cpp" and (key != "tensors" or entry.kind != "tokens"):
            assert any(violations(entry.schema, less)), f"{key} may be missing"
    assert any(violations(entry.schema, {**document, "more": 1}))


WHATEVER = [None, True, 0, 1, -1, 1.0, 0.5, "", "x", "F32", "0f", [], {}, [1], [True], {"a": 1}]


@pytest.mark.parametrize("name", sorted({entry.schema or "" for entry in DOCUMENTS}))
def test_compiled_schema_and_the_draft_accept_the_same_documents(name: str) -> None:
    """Each value of the kind's shortest document is replaced, and each of its objects gets extra
    keys."""
    paths = [DEFAULT_ROOT / entry.path for entry in DOCUMENTS if entry.schema == name]
    document = shortened(json.loads(min(paths, key=lambda p: p.stat().st_size).read_text()))
    draft = Draft202012Validator(schema_of(name))
    assert validator(name).is_valid(document)
    for around, key in places(document):
        before = around[key]
        for other in WHATEVER:
            around[key] = other
            assert not validator(name).is_valid(document) or draft.is_valid(document), (key, other)
        around[key] = before
        if isinstance(around, dict):
            around["more"] = before
            assert not validator(name).is_valid(document) or draft.is_valid(document), (key, "more")
            del around["more"]


def shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value[:64]] if isinstance(value, list) else value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and key of each value of a document, but only of the first value of a
    list."""
    keys = list(value) if isinstance(value, dict) else [*range(len(value))][:1]
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def test_violations_name_the_place_of_each_wrong_list_element() -> None:
    document = json.loads((DEFAULT_ROOT / "tokens/f32.json").read_text())
    assert not list(violations("tokens", document))
    document["encode"][3]["ids"] = [1, 2, -1, True, "x"]
    found = list(violations("tokens", document))
    assert [text.split(":")[0] for text in found] == [f"$.encode[3].ids[{i}]" for i in (2, 3, 4)]


def orphan(root: Path) -> str:
    (root / "logits" / "notes.txt").write_text("mine")
    return "logits/notes.txt"


def hidden_orphan(root: Path) -> str:
    (root / ".hidden").write_text("")
    return ".hidden"


def missing(root: Path) -> str:
    (root / "dequant/q8_0.safetensors").unlink()
    return "dequant/q8_0.safetensors"


def flipped(root: Path) -> str:
    path = root / "logits/moe.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    return "logits/moe.safetensors"


def appended(root: Path) -> str:
    with (root / "tokens/f32.json").open("a") as file:
        file.write("\n")
    return "tokens/f32.json"


def linked(root: Path) -> str:
    path = root / "tokens/f32.json"
    away = root.parent / "f32.json"
    shutil.move(path, away)
    path.symlink_to(away)
    return "tokens/f32.json"


def broken_schema(root: Path) -> str:
    edit_json(root / "logits/f32.json", lambda d: d.update(greedy=[-1]))
    reseal(root)
    return "logits/f32.json"


def reformatted(root: Path) -> str:
    path = root / "logits/f32.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    reseal(root)
    return "logits/f32.json"


def no_json(root: Path) -> str:
    (root / "logits/f32.json").write_text('{"kind": "logits", "kind": "logits"}')
    reseal(root)
    return "logits/f32.json"


def wider_bound(root: Path) -> str:
    edit_json(root / "logits/q8_0.json", lambda d: d["tolerance"].update(allowed=9.0))
    reseal(root)
    return "logits/q8_0.json"


def other_greedy_id(root: Path) -> str:
    edit_json(root / "logits/q8_0.json", lambda d: d["greedy"].append(d["greedy"].pop() ^ 1))
    reseal(root)
    return "logits/q8_0.json"


def short_block(root: Path) -> str:
    edit_json(root / "dequant/q4_0.json", lambda d: d["blocks"][3].update(hex="00"))
    reseal(root)
    return "dequant/q4_0.json"


def other_shape(root: Path) -> str:
    path = root / "dequant/q4_0.safetensors"
    save_file({"expected": load_file(path)["expected"].reshape(-1)}, path)
    reseal(root)
    return "dequant/q4_0.json"


def no_tensors(root: Path) -> str:
    (root / "dequant/q4_0.safetensors").write_bytes(b"\xff" * 64)
    reseal(root)
    return "dequant/q4_0.json"


def pickled(root: Path) -> str:
    edit_json(root / "dequant/q4_0.json", lambda d: d["tensors"].update(file="../v1/x.safetensors"))
    reseal(root)
    return "dequant/q4_0.json"


def edited_manifest(root: Path) -> str:
    edit_json(root / NAME, lambda d: d["files"].pop())
    return NAME


def no_manifest(root: Path) -> str:
    (root / NAME).unlink()
    return NAME


def escaping(root: Path) -> str:
    (root.parent / "outside.json").write_text("{}")
    entries = read_manifest(root)
    out = replace(entries[0], path="../outside.json")
    (root / NAME).write_bytes(manifest_bytes([*entries, out]))
    return "../outside.json"


def listed_twice(root: Path) -> str:
    entries = read_manifest(root)
    (root / NAME).write_bytes(manifest_bytes([*entries, entries[0]]))
    return NAME


DEEDS: list[Callable[[Path], str]] = [
    *(orphan, hidden_orphan, missing, flipped, appended, linked, broken_schema, reformatted),
    *(no_json, wider_bound, other_greedy_id, short_block, other_shape, no_tensors, pickled),
    *(edited_manifest, no_manifest, escaping, listed_twice),
]


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_verify_reports_each_broken_file_once(deed: Callable[[Path], str], tmp_path: Path) -> None:
    root = copied(tmp_path)
    path = deed(root)
    problems = verify(root)
    assert [problem.path for problem in problems] == [path]
    assert Path(path).stem in problems[0].text
    assert re.search(r"; (delete|restore|run)", problems[0].text), "it does not say what to do"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", "a\\b", "./a", "a//b", "a\0b"])
def test_irregular_path_is_refused(name: str, tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b") == tmp_path / "a/b"
    with pytest.raises(BrokenGolden, match="not a plain path"):
        inside(tmp_path, name)


@pytest.mark.parametrize(
    "raw", [b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 200_000, b"\xff", b""]
)
def test_lax_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BrokenGolden, match=r"^x\.json is not JSON"):
        parse_json(raw, "x.json")


def test_canonical_form_reads_back_and_ignores_the_order_of_keys() -> None:
    value = {"b": [1, 2.5, "é"], "a": {"x": [[1], []], "y": {}}, "c": None}
    turned = {key: value[key] for key in reversed(value)}
    assert canonical(value) == canonical(turned)
    assert json.loads(canonical(value)) == value
