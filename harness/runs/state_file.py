"""A report on one state file: its contents, and its differences from a model."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.states.file import SavedPart, SavedState, SavedStream, open_state
from lockstep.engine.states.fit import StateShape, find_misfits, shape_of_model


def examine_state(path: Path, model: Path | None) -> dict[str, Any]:
    """Return the contents of a file as plain values. Raises EngineError and OSError.

    `fits` is None without a model. `compared` is True if the model's layers and sizes are known.
    """
    shape = None
    if model is not None:
        with open_model(model) as file:
            shape = shape_of_model(file)
    state = open_state(path, shape.layouts if shape else ())
    return contents_of(state) | comparison(state, shape)


def comparison(state: SavedState, shape: StateShape | None) -> dict[str, Any]:
    if shape is None:
        return {"fits": None, "compared": False, "misfits": []}
    found = [asdict(each) for each in find_misfits(state, shape)]
    return {"fits": not found, "compared": shape.parts is not None, "misfits": found}


def contents_of(state: SavedState) -> dict[str, Any]:
    return {
        "kind": state.kind,
        "version": state.version,
        "bytes": state.n_bytes,
        "architecture": state.architecture,
        "tokens": len(state.tokens),
        "parts": [
            contents_of_stream(part, at, stream)
            for part in state.parts
            for at, stream in enumerate(part.streams)
        ],
    }


def contents_of_stream(part: SavedPart, at: int, stream: SavedStream) -> dict[str, Any]:
    positions = stream.cells.positions
    names = list(dict.fromkeys(row.name for row in stream.rows))
    return {
        "kind": part.kind,
        "stream": at,
        "cells": len(stream.cells),
        "sequences": stream.cells.sequences(),
        "positions": [int(positions.min()), int(positions.max())] if len(positions) else None,
        "layers": stream.n_layers,
        "rows": [
            {
                "name": name,
                "transposed": name == "v" and stream.transposed,
                "types": list(dict.fromkeys(row.type.name for row in rows)),
                "widths": list(dict.fromkeys(row.width for row in rows)),
                "layers": len(rows),
                "bytes": sum(row.n_bytes for row in rows),
            }
            for name in names
            for rows in [[row for row in stream.rows if row.name == name]]
        ],
    }
