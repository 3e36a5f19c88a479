"""The JSON Schemas of the vectors (draft 2020-12), and what a document has against them."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).parent


@cache
def validator(name: str) -> Draft202012Validator:
    schemas = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    registry = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas
    )
    own = next(schema for schema in schemas if schema["$id"].endswith(f":{name}"))
    return Draft202012Validator(own, registry=registry)


def violations(name: str, document: Any) -> Iterator[str]:
    """Each as a place in the document and a sentence."""
    for error in validator(name).iter_errors(document):
        yield f"{error.json_path}: {error.message[:200]}"
