"""transformers with torch: a GGUF loaded by from_pretrained, and tensors by hooks on modules.

PEFT adds LoRA files.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import importlib.metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from answering import (
    Unsupported,
    encode_answer,
    greedy_ids,
    later,
    serve,
    steps,
    texts,
    wanted_rows,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.integrations.gguf import dequant
from transformers_samplers import sample

PERMUTED = ("llama", "mistral")  # whose loader lays rows of Q and K out anew
# what a module gives, by its place in a layer; a name in brackets is what it is given
OF_LAYER = {
    "": ("l_out",),
    "input_layernorm": ("attn_norm",),
    "self_attn.q_proj": ("Qcur",),
    "self_attn.k_proj": ("Kcur",),
    "self_attn.v_proj": ("Vcur",),
    "self_attn.o_proj": ("attn_out", "kqv_out"),
    "post_attention_layernorm": ("ffn_norm", "ffn_inp"),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.down_proj": ("ffn_out", "ffn_swiglu"),
}
# as above where there are norms behind attention and the network as well, as in gemma
OF_NORMED = {
    **OF_LAYER,
    "post_attention_layernorm": ("attn_post_norm",),
    "pre_feedforward_layernorm": ("ffn_norm", "sa_out"),
    "mlp.down_proj": ("ffn_out", "ffn_geglu"),
    "post_feedforward_layernorm": ("ffn_post_norm",),
}
OUTSIDE = {"model.embed_tokens": "embd", "model.norm": "result_norm", "lm_head": "result_output"}
SCALED = "inp_scaled"  # what an embedding gives that multiplies by a factor
SHOWS = [SCALED, *OUTSIDE.values()]
SHOWS += dict.fromkeys(n for own in (OF_LAYER, OF_NORMED) for names in own.values() for n in names)


class Model:
    def __init__(self, path, loras):
        place = {"pretrained_model_name_or_path": Path(path).parent, "gguf_file": Path(path).name}
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        self.model = AutoModelForCausalLM.from_pretrained(**place, **options).eval()
        if loras:
            add_loras(self.model, path, loras)
        self.config = self.model.config
        self.shown = None
        for name, module in self.model.named_modules():
            self.watch(name, module)

    # --- tensors ----------------------------------------------------------------------------------

    def watch(self, name, module):
        of_model = getattr(module, "base_layer", module)  # within PEFT's
        if name in OUTSIDE:
            node = SCALED if hasattr(of_model, "embed_scale") else OUTSIDE[name]
            module.register_forward_hook(lambda *seen: self.show(node, seen[-1]))
        elif name.startswith("model.layers."):
            layer, _, place = name.removeprefix("model.layers.").partition(".")
            own = self.places(int(layer))
            if place in own and getattr(of_model, "bias", None) is None:
                given, *before = own[place]
                module.register_forward_hook(
                    lambda _, args, out: self.see(f"-{layer}", (given, out), (before, args))
                )

    def places(self, layer):
        normed = hasattr(self.model.model.layers[layer], "pre_feedforward_layernorm")
        return OF_NORMED if normed else OF_LAYER

    def see(self, layer, given, before):
        name, value = given
        for earlier in before[0]:
            self.show(earlier + layer, before[1][0])
        self.show(name + layer, value)

    def show(self, node, value):
        if self.shown is None:
            return
        value = value[0] if isinstance(value, tuple) else value
        self.shown[node] = self.as_in_the_file(node, value[0].numpy().copy())

    def as_in_the_file(self, node, value):
        """Return rows of Q and K in the file's order, with the elements of each pair side by
        side."""
        if not node.startswith(("Qcur", "Kcur")) or self.config.model_type not in PERMUTED:
            return value
        halves = value.reshape(
            len(value), -1, 2, self.model.model.layers[0].self_attn.head_dim // 2
        )
        return halves.swapaxes(2, 3).reshape(value.shape)

    # --- runs -------------------------------------------------------------------------------------

    @torch.no_grad()
    def decode(self, ids, start):
        if start == 0:
            self.cache = DynamicCache(config=self.config)
        ids = torch.tensor([ids])
        return self.model(ids, past_key_values=self.cache, use_cache=True).logits[0].numpy()

    def greedy(self, question, _):
        return greedy_ids(self.decode, question)

    def logits(self, question, _):
        arrays = {}
        last = self.config.num_hidden_layers - 1
        for i, (ids, start, wanted) in enumerate(steps(question["batches"])):
            self.shown = {} if question["trace"] else None
            arrays[f"logits{i}"] = self.decode(ids, start)[wanted].astype(np.float32)
            for node, value in (self.shown or {}).items():
                arrays[f"step{i}/{node}"] = wanted_rows(node, value, wanted, last)
        self.shown = None
        return {}, arrays


def add_loras(model, path, loras):
    """Let PEFT put its modules into the model."""
    from peft import PeftModel
    from peft_folder import write_peft_folder

    adapted, names = None, [str(i) for i in range(len(loras))]
    with TemporaryDirectory(prefix="lockstep-") as folder:
        for name, each in zip(names, loras, strict=True):
            place = write_peft_folder(path, each, Path(folder, name))
            if adapted is None:
                adapted = PeftModel.from_pretrained(model, place, name).eval()
            else:
                adapted.load_adapter(place, name)
    adapted.base_model.set_adapter(names, inference_mode=True)


class Tokenizer:
    def __init__(self, path):
        place = Path(path)
        self.tokenizer = AutoTokenizer.from_pretrained(place.parent, gguf_file=place.name)

    def tokenize(self, question, _):
        add, split = question["add_special"], not question["parse_special"]
        made = [
            self.tokenizer(text, add_special_tokens=add, split_special_tokens=split)["input_ids"]
            for text in texts(question)
        ]
        return {"ids": made}, {}

    def detokenize(self, question, _):
        if question["remove_special"] or not question["unparse_special"]:
            raise Unsupported("special tokens are all left out or all shown")
        options = {"clean_up_tokenization_spaces": False}
        return encode_answer(self.tokenizer.decode(ids, **options) for ids in question["ids"])


def dequantize(question, arrays):
    """Decode by the loader that version 5.23 has for some architectures; gguf-py decodes for
    others."""
    ids = {name: number for number, name in dequant.GGML_NAME.items()}
    if question["type"] not in ids:
        raise Unsupported(f"transformers has no decoder of its own for {question['type']}")
    raw = torch.from_numpy(arrays["raw"].copy())
    return {}, {"weights": dequant.dequantize(raw, ids[question["type"]]).numpy()}


def start(path, settings):
    torch.set_num_threads(settings["n_threads"])
    said = {"engine": "transformers", "version": importlib.metadata.version("transformers")}
    said["build"] = f"torch {torch.__version__}"
    alone = {"dequantize": dequantize, "sample": sample}
    if path is None:
        return said, alone
    answers = {
        **later(lambda: Tokenizer(path), "tokenize", "detokenize"),
        **later(lambda: Model(path, settings["adapters"]), "greedy", "logits"),
        **alone,
    }
    cache = {"type_k": "F32", "type_v": "F32", "flash_attn": False}
    can = [*answers, "trace", *("lora",) * bool(find_spec("peft"))]
    return {**said, "can": can, "shows": SHOWS, "settings": cache, "text": "utf8"}, answers


serve(start)
