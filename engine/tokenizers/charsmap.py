"""SentencePiece's precompiled character map: replacements of character sequences.

The blob is a 32-bit size, that many bytes of an XOR-compressed compact double array (a trie, one
32-bit word per node), and the replacements, each ended by a NUL. The blob comes from an untrusted
file. Every index is checked when it is used, as in llama.cpp, where a wrong index ends the process.

Source: llm_tokenizer_ugm and its xcda_array_view in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

from struct import unpack_from

import numpy as np

from lockstep.engine.errors import InvalidModel

KEY = "tokenizer.ggml.precompiled_charsmap"


class Charsmap:
    """Character map of a SentencePiece normaliser.

    Raises InvalidModel, when made or used, if the blob is broken.
    """

    def __init__(self, blob: bytes) -> None:
        if len(blob) < 4:
            raise InvalidModel(f"{KEY} must start with a size of 4 bytes, got {len(blob)} bytes")
        (size,) = unpack_from("<I", blob)
        if 4 + size >= len(blob):
            raise InvalidModel(
                f"{KEY} must have replacements after its trie: 4 + {size} bytes, got {len(blob)}"
            )
        self.nodes: list[int] = np.frombuffer(blob, "<u4", size // 4, 4).tolist()
        self.replacements = blob[4 + size :]

    def longest(self, text: bytes, at: int) -> tuple[bytes, int] | None:
        """Return the replacement of the longest mapped sequence at `at`, and that sequence's
        length."""
        if not self.nodes:
            return None
        node, size, found = base(self.node(0)), 0, 0
        for end in range(at, len(text)):
            byte = text[end]
            if byte == 0:
                break
            node ^= byte
            word = self.node(node)
            if word & 0x800000FF != byte:  # the previous node has no such child
                break
            node ^= base(word)
            if word & 0x100:  # a sequence ends at this node
                size, found = end + 1 - at, self.node(node) & 0x7FFFFFFF
        return (self.replacement(found), size) if size else None

    def node(self, index: int) -> int:
        if index >= len(self.nodes):
            raise InvalidModel(
                f"{KEY} must have node {index}, to which its trie leads, but has {len(self.nodes)}"
            )
        return self.nodes[index]

    def replacement(self, start: int) -> bytes:
        end = self.replacements.find(b"\0", start)
        if end < 0:
            raise InvalidModel(
                f"{KEY} must have a replacement that ends with NUL at {start}, "
                f"in {len(self.replacements)} bytes of them"
            )
        return self.replacements[start:end]


def base(word: int) -> int:
    """Return the place of a node's children; a flag says whether the number is in units of 256."""
    return (word >> 10 << ((word & 0x200) >> 6)) & 0xFFFFFFFF
