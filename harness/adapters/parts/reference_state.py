"""Our own file format for the state of our engine's memories: a tree of their contents, and
arrays."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.memory.attention import SavedCells
from lockstep.engine.memory.recurrent import State

TREE = "tree"
Arrays = dict[str, NDArray[Any]]


def write_tree(path: Path, saved: Any) -> None:
    """Write the result of `Memory.save` to a file."""
    arrays: Arrays = {}
    tree = json.dumps(as_tree(saved, arrays))
    with path.open("wb") as file:
        np.savez(file, **{TREE: np.array(tree)}, **arrays)  # type: ignore[arg-type]


def read_tree(path: Path) -> Any:
    """Return a state for `Memory.load`. Raises InvalidModel for a file in another format."""
    with path.open("rb") as file:
        return tree_in(file, path)


def tree_in(file: BinaryIO, path: Path) -> Any:
    try:
        with np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        return from_tree(json.loads(str(arrays.pop(TREE))), arrays)
    except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise InvalidModel(f"{path} is not a state file of our engine: {error}") from error


def as_tree(value: Any, arrays: Arrays) -> Any:
    """Return the value as JSON values, and move its arrays into `arrays`."""
    match value:
        case np.ndarray():
            name = f"a{len(arrays)}"
            arrays[name] = value
            return {"array": name}
        case SavedCells():
            return {"cells": [as_tree(each, arrays) for each in (value.streams, value.numbers)]}
        case State():
            return {"state": [value.pos, as_tree(value.numbers, arrays)]}
        case dict():
            return {"dict": [[key, as_tree(each, arrays)] for key, each in value.items()]}
        case frozenset():
            return {"set": sorted(value)}
        case tuple():
            return {"tuple": [as_tree(each, arrays) for each in value]}
        case list():
            return [as_tree(each, arrays) for each in value]
    return value if value is None else int(value)


def from_tree(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(tree, list):
        return [from_tree(each, arrays) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, held),) = tree.items()
    if kind == "array":
        return arrays[held]
    if kind == "set":
        return frozenset(held)
    if kind == "dict":
        return {key: from_tree(each, arrays) for key, each in held}
    parts = from_tree(held, arrays)
    if kind == "cells":
        return SavedCells(*parts)
    return State(*parts) if kind == "state" else tuple(parts)
