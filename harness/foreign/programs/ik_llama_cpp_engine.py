"""ik-llama-cpp-python: the binding of ik_llama.cpp, a fork of llama.cpp with its own kernels."""

import importlib.metadata
import os
import tempfile

import ik_llama_cpp._ctypes_api as api
import numpy as np
from answering import greedy_ids, later, rows_of, serve, texts
from ik_llama_cpp._internals import IkModel, make_batch_range
from ik_llama_cpp_samplers import Samplers

# the engine needs flash attention for a quantised cache, and treats an F32 cache as quantised
CACHE = {"type_k": "F16", "type_v": "F16", "flash_attn": False}


class Model:
    def __init__(self, path, settings):
        """Open a context through the C interface, because the library's own class does not set all
        these parameters."""
        self.model = IkModel(path)
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = settings["n_ctx"]
        params.n_ubatch = settings["n_ubatch"]
        params.n_threads = params.n_threads_batch = settings["n_threads"]
        params.flash_attn = False
        self.context = api.llama_init_from_model(self.model.model, params)
        if not self.context:
            raise RuntimeError("llama_init_from_model returned no context")

    def decode(self, ids, start):
        if start == 0:
            api.llama_kv_cache_clear(self.context)
        batch = make_batch_range(ids, pos_start=start)
        for i in range(len(ids)):
            batch.logits[i] = 1
        if failed := api.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {failed}")
        shape = (self.model.n_vocab,)
        rows = (api.llama_get_logits_ith(self.context, i) for i in range(len(ids)))
        found = np.stack([np.ctypeslib.as_array(row, shape).copy() for row in rows])
        api.llama_batch_free(batch)
        return found

    def greedy(self, question, _):
        return greedy_ids(self.decode, question)

    def logits(self, question, _):
        return rows_of(self.decode, question)

    def tokenize(self, question, _):
        add, parse = question["add_special"], question["parse_special"]
        made = [self.model.tokenize(t, add_bos=add, special=parse) for t in texts(question)]
        return {"ids": made}, {}


def start(path, settings):
    path = os.path.abspath(path) if path else path
    os.chdir(tempfile.gettempdir())  # a sampler that aborts leaves a file in the current folder
    name = "ik-llama-cpp-python"
    said = {"engine": name, "version": importlib.metadata.version(name), "text": "utf8"}
    asked = ("tokenize", "greedy", "logits") if path else ()
    answers = later(lambda: Model(path, settings), *asked)
    return {**said, "settings": CACHE}, answers | {"sample": Samplers(path).sample}


serve(start)
