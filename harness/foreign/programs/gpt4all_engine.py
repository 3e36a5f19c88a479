"""gpt4all: a binding of a llama.cpp version from 2024. It accepts text and returns text."""

import base64
import importlib.metadata
from pathlib import Path

from answering import encode_answer, later, serve
from gpt4all import GPT4All


class Model:
    def __init__(self, path, settings):
        place = Path(path)
        options = {"n_threads": settings["n_threads"], "n_ctx": settings["n_ctx"]}
        here = {"model_path": place.parent, "allow_download": False, "device": "cpu"}
        self.model = GPT4All(place.name, **here, **options)

    def generate(self, question, _):
        prompt = base64.b64decode(question["prompt"]).decode()
        greedy = {"temp": 0, "top_k": 1, "repeat_penalty": 1.0}
        text = self.model.generate(prompt, max_tokens=question["n"], **greedy)
        return {"text": encode_answer([text])[0]["texts"][0]}, {}


def start(path, settings):
    said = {"engine": "gpt4all", "version": importlib.metadata.version("gpt4all")}
    asked = ("generate",) if path else ()
    cache = {"type_k": "F16", "type_v": "F16", "flash_attn": False}  # these cannot be changed
    answers = later(lambda: Model(path, settings), *asked)
    return {**said, "text": "utf8", "settings": cache}, answers


serve(start)
