"""llama.cpp's samplers, applied one by one to lists of candidates."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER, Constructor, Kind
from lockstep.harness.adapters.llama_cpp.lib import Library
from lockstep.harness.adapters.llama_cpp.op import WRITTEN_FOR
from lockstep.harness.adapters.parts.sampled_lists import SampledList, join_lists
from lockstep.harness.records import SampleAnswer, SampleRequest

ROW = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])  # layout of llama_token_data
BREAKERS = "seq_breakers"  # only this parameter of dry needs a vocabulary
READERS = {
    name for name, row in BY_SAMPLER.items() if Kind.VOCABULARY in dict(row.parameters).values()
}


def needs_vocabulary(request: SampleRequest) -> bool:
    return any(each["sampler"] in READERS and each.get(BREAKERS, True) for each in request.chain)


def sample(lib: Library, request: SampleRequest, vocabulary: Any) -> SampleAnswer:
    if lib.number != WRITTEN_FOR:
        raise Unsupported(f"constructors of samplers are known only for {WRITTEN_FOR}")
    with open_stages(lib, request, vocabulary) as stages:
        rows = []
        for logits, accepted in zip(request.logits, request.accepted, strict=True):
            for token in accepted:
                for stage in stages:
                    lib.llama.llama_sampler_accept(stage, token)
            rows.append(apply_all(lib, stages, logits))
    return join_lists(rows)


@contextmanager
def open_stages(lib: Library, request: SampleRequest, vocabulary: Any) -> Iterator[list[Any]]:
    n_vocab = request.logits.shape[1]
    stages: list[Any] = []
    try:
        for described in request.chain:
            stages.append(make_stage(lib, described, n_vocab, vocabulary))
        yield stages
    finally:
        for stage in stages:
            lib.llama.llama_sampler_free(stage)


def make_stage(lib: Library, described: Mapping[str, Any], n_vocab: int, vocabulary: Any) -> Any:
    row = BY_SAMPLER.get(described["sampler"])
    if row is None:
        raise Unsupported(f"llama.cpp has no sampler {described['sampler']!r}")
    arguments = [
        argument
        for name, kind in row.parameters
        for argument in arguments_for(lib, kind, described.get(name), n_vocab, vocabulary)
    ]
    made = getattr(lib.llama, check_row(row, described).function)(*arguments)
    if not made:
        raise EngineError(f"llama.cpp refuses {described['sampler']} with these parameters")
    return made


def check_row(row: Constructor, described: Mapping[str, Any]) -> Constructor:
    if {*described} - {"sampler"} != {*row.fields}:
        raise EngineError(f"{row.function} has {', '.join(row.fields)}, not {', '.join(described)}")
    return row


def arguments_for(
    lib: Library, kind: Kind, value: Any, n_vocab: int, vocabulary: Any
) -> tuple[Any, ...]:
    if kind is Kind.N_VOCAB:
        return (n_vocab,)
    if kind is Kind.VOCABULARY:
        return (vocabulary,)
    if kind is Kind.BIASES:
        array = (lib.llama.llama_logit_bias * len(value))()
        for one, (token, bias) in zip(array, value, strict=True):
            one.token, one.bias = token, bias
        return len(value), array
    if kind is Kind.TEXTS:
        return (ctypes.c_char_p * len(value))(*value), len(value)
    if kind is Kind.TOKENS:
        return (lib.llama.llama_token * len(value))(*value), len(value)
    if kind is Kind.TEXT:
        return (value.encode(),)
    return (float(value) if kind is Kind.FLOAT else int(value),)


def apply_all(lib: Library, stages: list[Any], logits: NDArray[np.float32]) -> list[SampledList]:
    llama = lib.llama
    rows = np.zeros(len(logits), ROW)
    rows["id"], rows["logit"] = np.arange(len(logits)), logits
    array = llama.llama_token_data_array(
        data=rows.ctypes.data_as(llama.llama_token_data_p),
        size=len(rows),
        selected=-1,
        sorted=False,
    )
    found = []
    for stage in stages:
        llama.llama_sampler_apply(stage, ctypes.byref(array))
        found.append(read_list(array, rows))
    return found


def read_list(array: Any, rows: NDArray[Any]) -> SampledList:
    """Return the array's candidates. xtc moves the start of the array."""
    at = (ctypes.addressof(array.data.contents) - rows.ctypes.data) // ROW.itemsize
    held = rows[at : at + array.size]
    place = array.selected
    token = int(held["id"][place]) if 0 <= place < len(held) else -1
    ids, logits, p = (held[name].copy() for name in ("id", "logit", "p"))
    return SampledList(ids, logits, p, token, bool(array.sorted))
