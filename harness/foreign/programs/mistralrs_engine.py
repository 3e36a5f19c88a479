"""mistralrs (Rust, candle): text to ids and back, and what text follows. No logits."""

import base64
import importlib.metadata
from pathlib import Path

import mistralrs
from answering import Unsupported, encode_answer, later, serve, texts


class Model:
    def __init__(self, path):
        place = Path(path)
        which = mistralrs.Which.GGUF(
            quantized_model_id=str(place.parent),
            quantized_filename=place.name,
            dtype=mistralrs.ModelDType.F32,
        )
        options = {"no_paged_attn": True, "prefix_cache_n": 0, "token_source": "none"}
        self.runner = mistralrs.Runner(which=which, **options)

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
        """Generate a text. The engine puts no BOS in front, whatever the file says."""
        prompt = base64.b64decode(question["prompt"]).decode()
        asked = mistralrs.CompletionRequest(
            model="default", prompt=prompt, max_tokens=question["n"], temperature=0.0, top_k=1
        )
        text = self.runner.send_completion_request(asked).choices[0].text
        return {"text": base64.b64encode(text.encode()).decode()}, {}


def start(path, settings):
    said = {"engine": "mistralrs", "version": importlib.metadata.version("mistralrs")}
    asked = ("tokenize", "detokenize", "generate") if path else ()
    return {**said, "text": "utf8"}, later(lambda: Model(path), *asked)


serve(start)
