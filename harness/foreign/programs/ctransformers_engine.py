"""ctransformers: a binding of a ggml version from 2023, for llama models only. It returns ids, text
and logits."""

import importlib.metadata

import numpy as np
from answering import Unsupported, encode_answer, greedy_ids, later, rows_of, serve, texts
from ctransformers import LLM, Config

LIBRARY = "basic"  # one of three libraries in the wheel; it runs on every CPU


class Model:
    def __init__(self, path, settings):
        config = Config(context_length=settings["n_ctx"], threads=settings["n_threads"])
        try:
            self.llm = LLM(path, model_type="llama", config=config, lib=LIBRARY)
        except RuntimeError as error:  # newer types raise this too, and the log names them
            raise Unsupported(str(error)) from error

    def decode(self, ids, start):
        """Decode tokens one by one, because the library keeps only the last token's logits."""
        if start == 0:
            self.llm.reset()
        rows = []
        for token in ids:
            self.llm.eval([token])
            rows.append(
                np.ctypeslib.as_array(self.llm.logits._data, (len(self.llm.logits),)).copy()
            )
        return np.stack(rows)

    def greedy(self, question, _):
        return greedy_ids(self.decode, question)

    def logits(self, question, _):
        return rows_of(self.decode, question)

    def tokenize(self, question, _):
        if question["parse_special"]:
            raise Unsupported("it never reads the text of a special token as that token")
        add = question["add_special"]
        return {"ids": [self.llm.tokenize(text, add) for text in texts(question)]}, {}

    def detokenize(self, question, _):
        if question["remove_special"] or not question["unparse_special"]:
            raise Unsupported("special tokens are always shown as their text")
        return encode_answer(self.llm.detokenize(ids, decode=False) for ids in question["ids"])


def start(path, settings):
    said = {"engine": "ctransformers", "version": importlib.metadata.version("ctransformers")}
    cache = {"type_k": "F16", "type_v": "F16", "flash_attn": False}  # these cannot be changed
    asked = ("tokenize", "detokenize", "greedy", "logits") if path else ()
    answers = later(lambda: Model(path, settings), *asked)
    return {**said, "text": "utf8", "settings": cache}, answers


serve(start)
