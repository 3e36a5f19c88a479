"""Known differences of oracles and other engines, listed in `divergences.toml`. The header of that
file explains the format."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

NAME = "divergences.toml"


@cache
def document() -> dict[str, list[dict[str, Any]]]:
    """Return the content of the list. It comes with the package, because without it known
    differences would look new."""
    return tomllib.loads(files(__name__).joinpath(NAME).read_text())


def entries(table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, such as "gguf". They are shared and must not be changed."""
    return document()[table]
