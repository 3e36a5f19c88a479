"""Asks llama.cpp everything about a vocabulary, and compares the answers with ours."""

import ctypes
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.vocabulary import ROLE_TEXTS
from tests.differential.texts import FLAGS, SPECIAL, id_lists
from tests.places import ROOT

Ask = Callable[..., Any]
ROLES = ("bos", "eos", "eot", "sep", "pad", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad",
         "fim_rep", "fim_sep")  # fmt: skip
ADDED = ("bos", "eos", "sep")

# --- llama.cpp's side: one process that loads it, and a child of it for each question -------------


def serve() -> None:
    """Answer one request per line; the answer is null if the child process died."""
    import llama_cpp  # noqa: F401  # before the fork: it takes longest

    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            sys.stdin, sys.stdout = io.StringIO(line), os.fdopen(writing, "w")
            answer()
            sys.stdout.flush()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        print(text if status == 0 else "null", flush=True)  # noqa: T201


def answer() -> None:
    """Read one JSON request from stdin, write one JSON answer to stdout."""
    import llama_cpp as lib

    request = json.load(sys.stdin)
    silence = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silence, ctypes.c_void_p(0))
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(request["path"].encode(), params)
    json.dump(answers(lib, model, request) if model else {"loaded": False}, sys.stdout)


def answers(lib: Any, model: Any, request: dict[str, Any]) -> dict[str, Any]:
    vocab = lib.llama_model_get_vocab(model)
    count = range(lib.llama_vocab_n_tokens(vocab))
    texts, flagged = ([bytes.fromhex(t) for t in request[name]] for name in ("texts", "flagged"))
    suppressed = ctypes.c_int32()
    tokens = lib.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(suppressed))
    return {
        "loaded": True,
        "plain": [encode(lib, vocab, text, False, False) for text in texts],
        "encoded": [[encode(lib, vocab, text, *flags) for flags in FLAGS] for text in flagged],
        "decoded": [
            [decode(lib, vocab, ids, *flags).hex() for flags in FLAGS] for ids in request["ids"]
        ],
        "pieces": [
            [i, *(piece(lib, vocab, i, special).hex() for special in (False, True))]
            for i in request["pieces"] or count
        ],
        "texts": [lib.llama_vocab_get_text(vocab, i).hex() for i in count],
        "scores": [lib.llama_vocab_get_score(vocab, i) for i in count],
        "attrs": [lib.llama_vocab_get_attr(vocab, i) for i in count],
        "eog": [i for i in count if lib.llama_vocab_is_eog(vocab, i)],
        "roles": {role: getattr(lib, f"llama_vocab_{role}")(vocab) for role in ROLES},
        "adds": [getattr(lib, f"llama_vocab_get_add_{role}")(vocab) for role in ADDED],
        "suppressed": list(tokens[: suppressed.value]),
    }


def encode(lib: Any, vocab: Any, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    room = len(text) + 8
    ids = (lib.llama_token * room)()
    n = lib.llama_tokenize(vocab, text, len(text), ids, room, add_special, parse_special)
    if n < 0:
        ids = (lib.llama_token * -n)()
        n = lib.llama_tokenize(vocab, text, len(text), ids, -n, add_special, parse_special)
    return list(ids[:n])


def decode(lib: Any, vocab: Any, ids: list[int], remove: bool, unparse: bool) -> bytes:
    tokens = (lib.llama_token * len(ids))(*ids)
    return grown(
        lambda room: lib.llama_detokenize(vocab, tokens, len(ids), room, len(room), remove, unparse)
    )


def piece(lib: Any, vocab: Any, token: int, special: bool) -> bytes:
    return grown(lambda room: lib.llama_token_to_piece(vocab, token, room, len(room), 0, special))


def grown(fill: Callable[[Any], int]) -> bytes:
    """Return the output of `fill`, in a buffer that grows as needed. For a small buffer, `fill`
    returns minus the needed size."""
    buffer = ctypes.create_string_buffer(4096)
    n = fill(buffer)
    if n < 0:
        buffer = ctypes.create_string_buffer(-n)
        n = fill(buffer)
    return buffer.raw[:n]


def flags_of_code_points() -> None:
    """Write the library's flags of all code points: 16 bits each."""
    import ctypes

    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    ask = ctypes.CDLL(str(folder / "libllama.so"))["_Z26unicode_cpt_flags_from_cptj"]
    ask.restype, ask.argtypes = ctypes.c_uint16, [ctypes.c_uint32]
    flags = np.array([ask(code) for code in range(0x110000)], "<u2")
    sys.stdout.buffer.write(flags.tobytes())


@contextmanager
def asking() -> Iterator[Ask]:
    """Yield a function that returns llama.cpp's answers for a vocabulary, texts and ids, or None if
    llama.cpp died. `texts` are encoded without flags, `flagged` with all flags. `pieces`: the
    tokens whose texts are requested; all tokens if empty."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork: tokenizers were not compared with llama.cpp")
    server = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    into, out = server.stdin, server.stdout

    def question(path: Path, flagged: list[bytes], ids: list[list[int]], **more: Any) -> Any:
        request = {"path": str(path), "flagged": flagged, "ids": ids, "texts": [], "pieces": []}
        request |= more
        for name in ("texts", "flagged"):
            request[name] = [text.hex() for text in request[name]]
        into.write(json.dumps(request) + "\n")
        into.flush()
        return json.loads(out.readline())

    try:
        yield question
    finally:
        into.close()
        out.close()
        assert server.wait(60) == 0


# --- our side -----------------------------------------------------------------------------------


def opened(path: Path) -> Tokenizer:
    with GgufFile.open(path) as file:
        found: Any = Remembering(tokenizer_of(file.metadata))
    tokenizer: Tokenizer = found
    return tokenizer


class Remembering:
    """A tokenizer that encodes each text only once; its ids are compared and then decoded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.encode = cache(tokenizer.encode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def refuses(tokenizer: Tokenizer, text: bytes) -> bool:
    try:
        tokenizer.encode(text)
    except EngineError:
        return True
    return False


def differences(
    tokenizer: Tokenizer,
    theirs: dict[str, Any],
    flagged: list[bytes],
    ids: list[list[int]],
    texts: Sequence[bytes] = (),
) -> list[str]:
    """Return a description of each of our answers that differs from llama.cpp's."""
    found = []

    def compare(what: str, ours: Any, expected: Any) -> None:
        if ours != expected:
            found.append(f"{what}: llama.cpp {expected!r}, ours {ours!r}")

    encoded = [
        *(
            (text, FLAGS[0], expected)
            for text, expected in zip(texts, theirs["plain"], strict=True)
        ),
        *(
            (text, flags, expected)
            for text, answers in zip(flagged, theirs["encoded"], strict=True)
            for flags, expected in zip(FLAGS, answers, strict=True)
        ),
    ]
    for text, (add, parse), expected in encoded:
        ours = tokenizer.encode(text, add_special=add, parse_special=parse)
        compare(f"encode {text!r} add_special={add} parse_special={parse}", ours, expected)
    for run, answers in zip(ids, theirs["decoded"], strict=True):
        for (remove, unparse), expected in zip(FLAGS, answers, strict=True):
            back = tokenizer.decode(run, remove_special=remove, unparse_special=unparse)
            compare(f"decode {run} {remove=} {unparse=}", back.hex(), expected)
    vocabulary = tokenizer.vocabulary
    for i, hidden, shown in theirs["pieces"]:
        compare(f"piece {i}", tokenizer.piece(i, special=False).hex(), hidden)
        compare(f"special piece {i}", tokenizer.piece(i, special=True).hex(), shown)
    compare("texts", [text.hex() for text in vocabulary.texts], theirs["texts"])
    compare("scores", list(vocabulary.scores), theirs["scores"])
    compare("attrs", list(vocabulary.attrs), theirs["attrs"])
    compare("eog", sorted(vocabulary.eog), theirs["eog"])
    for role in ROLES:
        ours = -1 if (i := vocabulary.roles[role]) is None else i
        expected = theirs["roles"][role]
        if not is_doubtful(tokenizer, role, ours, expected):
            compare(role, ours, expected)
    adds = [getattr(vocabulary, f"add_{role}") for role in ADDED]
    compare("adds", adds, theirs["adds"])
    compare("suppressed", list(vocabulary.suppressed), theirs["suppressed"])
    return found


def is_doubtful(tokenizer: Tokenizer, role: str, ours: int, expected: int) -> bool:
    """Return True if two tokens have the role's text. llama.cpp then uses the token that is first
    in its hash table."""
    ids = tokenizer.vocabulary.ids
    candidates = {ids[text] for text in ROLE_TEXTS.get(role, "").encode().split() if text in ids}
    return len(candidates) > 1 and ours == min(candidates) and expected in candidates


def check(ask: Ask, path: Path, texts: list[bytes], every: int = 1, n_pieces: int = 0) -> None:
    """Check that every answer is llama.cpp's, and that llama.cpp dies of texts that we refuse.

    every: encode only one in `every` texts with all flags, because that can take a millisecond a
    text. n_pieces: compare the pieces of the first `n_pieces` tokens, and of one in `every` later
    tokens.
    """
    tokenizer = opened(path)
    refused = [text for text in texts if refuses(tokenizer, text)]
    accepted = [text for text in texts if text not in refused]
    assert len(accepted) > 200
    n_vocab = tokenizer.vocabulary.n_vocab
    pieces = [*range(n_pieces), *range(n_pieces, n_vocab, every)] if n_pieces else []
    flagged = accepted if every == 1 else [*SPECIAL, *accepted[::every]]
    plain = [] if every == 1 else accepted
    ids = id_lists(tokenizer, accepted[::every])
    theirs = ask(path, flagged, ids, texts=plain, pieces=pieces)
    assert theirs is not None, "llama.cpp died"
    assert theirs["loaded"]
    found = differences(tokenizer, theirs, flagged, ids, plain)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])
    for text in refused[: 2 if every == 1 else 0]:
        assert ask(path, [text], []) is None, f"llama.cpp survives {text!r}"
