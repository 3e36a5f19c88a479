"""The JSON Schemas of the vectors (draft 2020-12), and what a document has against them."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

FOLDER = Path(__file__).parent
PLAIN = {"type", "minimum", "maximum", "pattern", "description"}  # keywords of what is not nested


@cache
def validator(name: str) -> Draft202012Validator:
    schemas = {s["$id"]: s for s in (json.loads(p.read_text()) for p in FOLDER.glob("*.json"))}
    own = next(key for key in schemas if key.endswith(f":{name}"))
    kind = extend(Draft202012Validator, {"items": items})
    made: Draft202012Validator = kind(inlined(schemas[own], schemas, own))
    return made


def inlined(value: Any, schemas: Mapping[str, Any], own: str) -> Any:
    """The schema with what it refers to in its place: ours refer to `$defs`, never in a circle."""
    if isinstance(value, list):
        return [inlined(item, schemas, own) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" not in value:
        return {key: inlined(item, schemas, own) for key, item in value.items()}
    where, _, name = value["$ref"].partition("#/$defs/")
    target = inlined(schemas[where or own]["$defs"][name], schemas, where or own)
    return {**target, **{key: item for key, item in value.items() if key != "$ref"}}


def items(
    validator: Any, schema: Any, instance: Any, around: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """The draft's keyword, but a list of plain ids or strings that is fine is seen to be at once:
    vectors hold half a million of them, and one by one they take most of the time."""
    if not (isinstance(instance, list) and "prefixItems" not in around and fine(schema, instance)):
        yield from Draft202012Validator.VALIDATORS["items"](validator, schema, instance, around)


def fine(schema: Mapping[str, Any], values: list[Any]) -> bool:
    """Whether all of them certainly obey; False may also mean that this is not the place to tell.

    `type(v) is` and not isinstance: a Boolean is no integer.
    """
    if not schema.keys() <= PLAIN:
        return False
    if schema.get("type") == "integer" and "pattern" not in schema:
        low, high = schema.get("minimum", -(1 << 63)), schema.get("maximum", 1 << 63)
        return all(type(value) is int and low <= value <= high for value in values)
    if schema.get("type") == "string" and not schema.keys() & {"minimum", "maximum"}:
        obeys = re.compile(schema.get("pattern", "")).search
        return all(type(value) is str and obeys(value) for value in values)
    return False


def violations(name: str, document: Any) -> Iterator[str]:
    """Each as a place in the document and a sentence."""
    for error in validator(name).iter_errors(document):
        yield f"{error.json_path}: {error.message[:200]}"
