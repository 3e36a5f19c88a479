"""The JSON Schemas of the vectors (draft 2020-12), and the check of a document."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_rs

FOLDER = Path(__file__).parent


@cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    """Return a compiled validator, because one in Python would take minutes for half a million
    ids."""
    return jsonschema_rs.Draft202012Validator(schema_of(name))


@cache
def schema_of(name: str) -> Any:
    schemas = {s["$id"]: s for s in (json.loads(p.read_text()) for p in FOLDER.glob("*.json"))}
    own = next(key for key in schemas if key.endswith(f":{name}"))
    return inline_references(schemas[own], schemas, own)


def inline_references(value: Any, schemas: Mapping[str, Any], own: str) -> Any:
    """Return the schema with its `$defs` references inlined; they are never circular."""
    if isinstance(value, list):
        return [inline_references(item, schemas, own) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" not in value:
        return {key: inline_references(item, schemas, own) for key, item in value.items()}
    where, _, name = value["$ref"].partition("#/$defs/")
    target = inline_references(schemas[where or own]["$defs"][name], schemas, where or own)
    return {**target, **{key: item for key, item in value.items() if key != "$ref"}}


def violations(name: str, document: Any) -> Iterator[str]:
    """Yield a sentence for each violation of the schema, with its place in the document."""
    if validator(name).is_valid(document):
        return
    for error in jsonschema.Draft202012Validator(schema_of(name)).iter_errors(document):
        yield f"{error.json_path}: {error.message[:200]}"
