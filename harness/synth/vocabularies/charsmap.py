"""A precompiled character map in SentencePiece's format: a trie in a double array, and
replacements.

A node has 32 bits. The low 8 bits hold the byte that leads to the node. Bit 8 is set if a sequence
ends there. The bits from 10 on hold the offset of its children, which is combined with the node's
position by exclusive or. The leaf below the end of a sequence has bit 31 set, and holds the start
of the replacement. Every node is placed at the first position where all its children fit.
"""

from collections.abc import Mapping

import numpy as np

LEAF = 1 << 31
ENDS = 1 << 8


def charsmap(replacements: Mapping[str, str]) -> bytes:
    """Return the blob of `tokenizer.ggml.precompiled_charsmap`."""
    texts = sorted({*replacements.values()})
    starts: dict[str, int] = {}
    held = b""
    for text in texts:
        starts[text] = len(held)
        held += text.encode() + b"\0"
    nodes = double_array({key.encode(): starts[value] for key, value in replacements.items()})
    trie = np.array(nodes, "<u4").tobytes()
    return len(trie).to_bytes(4, "little") + trie + held


def double_array(values: Mapping[bytes, int]) -> list[int]:
    """Return the nodes; the root is node 0. The length is a multiple of 256, so that no byte leads
    outside the list."""
    trie: dict[bytes, set[int]] = {b"": set()}  # prefix -> the bytes that may follow
    for key in values:
        for at in range(len(key)):
            trie.setdefault(key[:at], set()).add(key[at])
            trie.setdefault(key[: at + 1], set())
    nodes: dict[int, int] = {0: 0}
    places = {b"": 0}
    for start in sorted(trie, key=lambda text: (len(text), text)):
        children = sorted(trie[start] | ({0} if start in values else set()))
        if not children:
            continue
        place = places[start]
        offset = free_offset(nodes, place, children)
        nodes[place] |= offset << 10 | (ENDS if start in values else 0)
        for byte in children:
            child = place ^ offset ^ byte
            if byte == 0:
                nodes[child] = LEAF | values[start]
            else:
                nodes[child] = byte
                places[start + bytes([byte])] = child
    length = -(-(max(nodes) + 1) // 256) * 256
    return [nodes.get(i, 0) for i in range(length)]


def free_offset(nodes: Mapping[int, int], place: int, children: list[int]) -> int:
    """Return the smallest offset that places every child at a free position. The root's position is
    never free."""
    offset = 1
    while any((place ^ offset ^ byte) in nodes for byte in children):
        offset += 1
    return offset
