"""llama.cpp's tokenizer, asked often: one process that loads it, and a child of it per question."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
Ask = Callable[[Path, list[bytes], list[list[int]]], Any]


def serve() -> None:
    """Runs in the subprocess: a request per line, and null where the child died of it."""
    import llama_cpp  # noqa: F401  # before the fork: it takes longest

    from tests.differential.test_tokens_llama_cpp import answer  # whose tests ask this

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


@contextmanager
def asking() -> Iterator[Ask]:
    """llama.cpp's answer to a vocabulary, texts and ids, or None if it died."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork: tokenizers were not compared with llama.cpp")
    server = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPO,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    into, out = server.stdin, server.stdout

    def question(path: Path, texts: list[bytes], ids: list[list[int]]) -> Any:
        request = {"path": str(path), "texts": [text.hex() for text in texts], "ids": ids}
        into.write(json.dumps(request) + "\n")
        into.flush()
        return json.loads(out.readline())

    try:
        yield question
    finally:
        into.close()
        out.close()
        assert server.wait(60) == 0
