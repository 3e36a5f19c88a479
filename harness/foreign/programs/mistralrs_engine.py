"""mistralrs (Rust, candle): converts text to ids and back, and continues texts. It shows no logits.

It reads LoRA files in PEFT's format, and adds one LoRA per request.
"""

import os

os.environ["MISTRALRS_CPU_KV_F32"] = "1"  # otherwise the cache is F16

import base64
import importlib.metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import mistralrs
from answering import Unsupported, encode_answer, later, serve, texts

CACHE = {"type_k": "F32", "type_v": "F32", "flash_attn": False}
ADDED = "added"  # name of the LoRA file in requests


def load(path, adapters):
    which = mistralrs.Which.GGUF(
        quantized_model_id=str(Path(path).parent),
        quantized_filename=Path(path).name,
        dtype=mistralrs.ModelDType.F32,
        adapters=adapters,
    )
    options = {"no_paged_attn": True, "prefix_cache_n": 0, "token_source": "none"}
    return mistralrs.Runner(which=which, **options)


class Model:
    def __init__(self, path, loras):
        if len(loras) > 1:
            raise Unsupported("it adds only one LoRA file to a request")
        self.adapter = ADDED if loras else None
        if not loras:
            self.runner = load(path, None)
            return
        from peft_folder import write_peft_folder  # imported here, because it imports gguf

        with TemporaryDirectory(prefix="lockstep-") as folder:
            place = write_peft_folder(path, loras[0], Path(folder, ADDED))
            try:
                self.runner = load(path, [mistralrs.LoraAdapter(ADDED, place)])
            except ValueError as error:
                if "LoRA" not in str(error):
                    raise
                raise Unsupported(str(error).partition("\n")[0]) from error

    def tokenize(self, question, _):
        if not question["parse_special"]:
            raise Unsupported("it always reads the text of a special token as that token")
        add = question["add_special"]
        return {"ids": [self.runner.tokenize_text(t, add, None) for t in texts(question)]}, {}

    def detokenize(self, question, _):
        if question["remove_special"] or not question["unparse_special"]:
            raise Unsupported("special tokens are all left out or all shown")
        return encode_answer(self.runner.detokenize_text(ids, False) for ids in question["ids"])

    def generate(self, question, _):
        """Generate a text. The engine adds no BOS, even if the file asks for one."""
        prompt = base64.b64decode(question["prompt"]).decode()
        asked = mistralrs.CompletionRequest(
            model="default",
            prompt=prompt,
            max_tokens=question["n"],
            temperature=0.0,
            top_k=1,
            adapter=self.adapter,
        )
        text = self.runner.send_completion_request(asked).choices[0].text
        return {"text": base64.b64encode(text.encode()).decode()}, {}


def start(path, settings):
    said = {"engine": "mistralrs", "version": importlib.metadata.version("mistralrs")}
    asked = ("tokenize", "detokenize", "generate") if path else ()
    can = [*asked, *("lora",) * bool(path and find_spec("gguf"))]
    model = later(lambda: Model(path, settings["adapters"]), *asked)
    return {**said, "can": can, "text": "utf8", "settings": CACHE}, model


serve(start)
