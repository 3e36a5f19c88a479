"""The README of an export: its files, their use, their source and licence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WHAT = {
    "tokens": "Texts with the ids of their tokens, and ids with their bytes.",
    "dequant": "Named blocks of weight formats and the float32 bits that they decode to.",
    "dot": "Small matrices of weight formats, activations, their products and the bounds to allow.",
    "ops": "Operations at their edges: inputs, the right results and the bounds to allow.",
    "logits": "Logits of small models: of a prompt and of the greedy steps after it, with a bound.",
    "samplers": "Chains of samplers, logits and draws, and the right list after every stage.",
    "files": "GGUF files with one named fault each, or with something unusual, and the verdict.",
}
RULES = {
    "tokens": """\
Expect exactly the ids, and on the way back exactly the bytes. Some texts are not UTF-8. An engine
whose strings hold only characters skips those texts, and must not put U+FFFD in their place.""",
    "dequant": """\
Compare bits: -0.0 is not 0.0. Any NaN equals any NaN. Multiply in ggml's order and round each
product to float32: multiply the scales first, then the weight.""",
    "dot": """\
No element may be further from `expected` than `allowed`. If your engine does not convert
activations to `vec_dot_type`, no element may be further from `plain` than `plain_allowed`. NaN is
always wrong.""",
    "ops": """\
No element of an output may be further from the expected value than the bound; NaN and infinity
must be the same. If an output has several ways, one way must fit all its elements. If an input
has `nb`, lay its values out with these strides (bytes, fastest dimension first). Outputs that
are ids are judged by the values at these ids. With `ties`, the ids of a row must be distinct, and
must choose the same values from the input `of`, in the same order. With `choice`, any order is
right. With `rows`, only the first entries of a row count, in any order; the output `of` has their
number.""",
    "logits": """\
With an F32 cache and without flash attention, decode the prompt as one batch on an empty cache,
then each greedy token but the last as a batch of its own. No logit may be further off than
`allowed`, in absolute terms; NaN is always wrong. Models with F32 weights have the narrowest
bounds: start with them.""",
    "files": """\
A `valid` file must be accepted and an `invalid` one refused; for an `implementation-defined` one
both are right. No file may end the process, hang or take much memory.""",
}
PAGES = {"samplers": "SAMPLERS.md"}  # levels with a complete page
GENERATED = "## Generated text"  # heading from which such a page is only about Lockstep
HERE = Path(__file__).parent
USE = {
    "json": """\
`NAME.json` is a whole document; a tensor is `dtype`, `shape` and `base64`, its little-endian
bytes. In Python, without any library: `struct.unpack(f"<{n}f",
base64.b64decode(tensor["base64"]))`.""",
    "safetensors": """\
`NAME.json` is a document, and `NAME.safetensors` has its tensors: eight bytes with the length of
the header, the header as JSON, then raw little-endian arrays.""",
    "c": """\
Write the functions that `{level}.h` declares in a file of yours, then run

    cc -std=c99 *.c -lm && ./a.out

`runner.c` compares your answers with the vectors. It names the wrong answers, and those that
you do not offer. Its exit code is 1 if anything is wrong and 3 if nothing was offered. No library
is needed. You may delete the files of names that you do not need, with their lines in
`vectors.c`.""",
}


def readme(about: Mapping[str, Any]) -> str:
    level, form = about["level"], about["as"]
    if level in PAGES:
        page = (HERE.parent / PAGES[level]).read_text(encoding="utf-8")
        return (
            "\n\n".join([page.partition(GENERATED)[0].rstrip(), "## Origin", origin(about)]) + "\n"
        )
    parts = [f"# Golden vectors: {level}", WHAT[level], "## Using them"]
    parts += [USE[form].replace("{level}", level), "## Rules", RULES[level]]
    if level in ("logits", "tokens"):
        parts.append(models(about["models_not_included"]))
    parts += ["## Origin", origin(about)]
    return "\n\n".join(parts) + "\n"


def models(left_out: Mapping[str, str]) -> str:
    text = "`models/` has the files, as NAME.gguf."
    if not left_out:
        return text
    rows = "\n".join(f"- `{name}`: {sha256}" for name, sha256 in sorted(left_out.items()))
    return f"{text} The export lacks these models; you recognise them by their SHA-256:\n\n{rows}"


def origin(about: Mapping[str, Any]) -> str:
    names = " ".join(f"--only {name}" for name in about["names"])
    again = f"lockstep golden export DIR --level {about['level']} --as {about['as']}"
    short = f" {names}" if len(about["names"]) <= 4 else ""
    return f"""\
Lockstep (gguf-lockstep {about["gguf-lockstep"]}), vectors {about["vectors"]}, seal
{about["seal"]}. Each document names the engine and its version in `provenance`.
Answers of llama.cpp come from llama.cpp, which is under the MIT licence too. Written by

    {again}{short}

`index.json` has the SHA-256 of every file. All of it is under the MIT licence, in `LICENSE`."""
