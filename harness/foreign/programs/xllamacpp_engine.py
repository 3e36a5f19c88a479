"""xllamacpp: llama.cpp's server inside a Python process.

The server's /detokenize intentionally keeps the leading space that llama_detokenize removes.
Therefore this program does not offer detokenizing.
"""

import importlib.metadata
import json
import urllib.request

import xllamacpp
from answering import Unsupported, later, serve, texts


class Model:
    def __init__(self, path, settings):
        p = xllamacpp.CommonParams()
        p.model.path = path
        p.n_ctx, p.n_batch, p.n_ubatch = settings["n_ctx"], settings["n_ctx"], settings["n_ubatch"]
        p.n_parallel, p.n_gpu_layers, p.warmup, p.port = 1, 0, False, 0
        p.cpuparams.n_threads = settings["n_threads"]
        kinds = xllamacpp.ggml_type
        p.cache_type_k = getattr(kinds, f"GGML_TYPE_{settings['type_k']}")
        p.cache_type_v = getattr(kinds, f"GGML_TYPE_{settings['type_v']}")
        attention = xllamacpp.llama_flash_attn_type
        on = "ENABLED" if settings["flash_attn"] else "DISABLED"
        p.flash_attn_type = getattr(attention, f"LLAMA_FLASH_ATTN_TYPE_{on}")
        info = xllamacpp.CommonAdapterLoraInfo
        p.lora_adapters = [info(each["path"], each["scale"]) for each in settings["adapters"]]
        self.server = xllamacpp.Server(p)

    def ask(self, path, body):
        """Send a request to the server's own endpoints on this machine. The library's Python
        interface offers only OpenAI's endpoints."""
        asked = urllib.request.Request(
            self.server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked) as reply:
            return json.load(reply)

    def tokenize(self, question, _):
        flags = {name: question[name] for name in ("add_special", "parse_special")}
        asked = ({"content": text, **flags} for text in texts(question))
        return {"ids": [self.ask("/tokenize", each)["tokens"] for each in asked]}, {}

    def greedy(self, question, _):
        """Generate greedily. After an end-of-text token, ask the engine to continue.

        The engine cannot be told to ignore such tokens, because then it would never choose them.
        """
        options = {"temperature": 0, "cache_prompt": False, "return_tokens": True}
        prompt, n, ids = list(question["prompt"]), question["n"], []
        while len(ids) < n:
            asked = {"prompt": prompt + ids, "n_predict": n - len(ids)}
            more = self.ask("/completion", {**asked, **options})["tokens"]
            if not more:
                raise Unsupported(f"it gives no token after {len(prompt + ids)}")
            ids += more
        return {"ids": ids}, {}


def start(path, settings):
    said = {"engine": "xllamacpp", "version": importlib.metadata.version("xllamacpp")}
    asked = ("tokenize", "greedy") if path else ()
    can = [*asked, *("lora",) * bool(path)]
    return {**said, "can": can, "text": "utf8"}, later(lambda: Model(path, settings), *asked)


serve(start)
