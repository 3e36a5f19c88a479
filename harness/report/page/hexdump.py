"""Bytes as text: blocks of weights with named fields, and files as hex dumps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members

WIDE = 16  # bytes in a line
MOST = 2048  # bytes in a dump
NEAR = 4  # values on either side of the different value


def blocks_of(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the block of a wrong weight, drawn separately for each engine if the bytes differ."""
    if (given := detail.get("decoded")) is not None:
        sides = {name: given[name] for name in ("oracle", "subject")}
        same = sides["oracle"]["hex"] == sides["subject"]["hex"]
        names = (
            {"as given to both engines": sides["oracle"]}
            if same
            else {f"of the {who}'s file": one for who, one in sides.items()}
        )
        unlike = unlike_bytes(*(bytes.fromhex(one["hex"]) for one in sides.values()))
        found = [block(who, one["type"], one["hex"], unlike) for who, one in names.items()]
        return {"blocks": found, "values": values_of(sides)}
    if "block" not in detail or "type" not in detail:
        return None
    found = [block("the smallest block", detail["type"], detail["block"])]
    if detail.get("original") not in (None, detail["block"]):
        found.append(block("as found", detail["type"], detail["original"]))
    return {"blocks": found, "values": []}


def unlike_bytes(a: bytes, b: bytes) -> frozenset[int]:
    """Return the positions at which two blocks of the same size differ."""
    pairs = enumerate(zip(a, b, strict=True)) if len(a) == len(b) else ()
    return frozenset(i for i, (x, y) in pairs if x != y)


def block(
    who: str, kind: str, raw_hex: str, unlike: frozenset[int] = frozenset()
) -> dict[str, Any]:
    """Draw a block. `unlike` holds the positions of bytes that differ from the other engine's
    block."""
    raw = bytes.fromhex(raw_hex)
    return {"who": who, "type": kind, "bytes": len(raw), "fields": fields_of(kind, raw, unlike)}


def fields_of(kind: str, raw: bytes, unlike: frozenset[int]) -> list[dict[str, Any]]:
    """Return the name, type, position and bytes of each field, and its value if it is a single
    number. A block without named fields is one field."""
    import_members("lockstep.engine.quants")
    layout = WeightFormat.family[kind].layout if kind in WeightFormat.family else None
    if layout is None or layout.itemsize != len(raw) or not layout.fields:
        return [{"name": "bytes", "type": "", "at": 0, "lines": in_lines(raw, unlike), "value": ""}]
    found = []
    for name in layout.names or ():
        dtype, at = layout.fields[name][:2]
        part = raw[at : at + dtype.itemsize]
        shape = "".join(f"[{n}]" for n in dtype.shape)
        value = "" if dtype.shape else f"{np.frombuffer(part, dtype)[0]:.9g}"
        row = {"name": name, "type": f"{dtype.base.name}{shape}", "at": at}
        inside = frozenset(i - at for i in unlike)
        found.append(row | {"lines": in_lines(part, inside), "value": value})
    return found


def in_lines(raw: bytes, unlike: frozenset[int]) -> list[list[tuple[str, bool]]]:
    """Return the bytes in lines. Each byte has a flag that marks it as different."""
    every = [(f"{byte:02x}", i in unlike) for i, byte in enumerate(raw)]
    return [every[i : i + WIDE] for i in range(0, len(every), WIDE)]


def values_of(sides: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return both engines' values of the weights around the reported one."""
    want, got = sides["oracle"]["values"], sides["subject"]["values"]
    at = int(sides["oracle"]["weight"])
    if len(want) != len(got):  # the sides have different types
        return []
    shown = range(max(0, at - NEAR), min(len(want), at + NEAR + 1))
    return [
        {"at": i, "expected": want[i], "actual": got[i], "differs": want[i] != got[i]}
        for i in shown
    ]


def dump_of(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a dump of the minimal file that `fuzz gguf` found, or of the text that `fuzz tokens`
    found."""
    given = detail.get("file")
    name = "The smallest file"
    if not given and detail.get("way") == "encode" and is_hex(detail.get("input")):
        given, name = detail["input"], "The smallest text"
    if not given:
        return None
    raw = bytes.fromhex(given)
    return {"name": name, "bytes": len(raw), "lines": dump(raw[:MOST]), "cut": len(raw) > MOST}


def is_hex(text: Any) -> bool:
    return isinstance(text, str) and not set(text) - set("0123456789abcdef") and len(text) % 2 == 0


def dump(raw: bytes) -> Sequence[str]:
    """Return lines such as `00000010  47 47 55 46 ...  |GGUF...|`."""
    lines = []
    for at in range(0, len(raw), WIDE):
        part = raw[at : at + WIDE]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * WIDE - 1}}  |{text}|")
    return lines
