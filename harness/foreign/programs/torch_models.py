"""Runs of a transformers model. Hooks on its modules show its tensors under llama.cpp's names."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from answering import Unsupported, encode_answer, greedy_ids, steps, texts, wanted_rows
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

# architectures whose files have rows of Q and K in another order
PERMUTED = ("llama", "mistral", "mixtral")
LAYERS = ("layers", "h", "layer")  # names of lists of decoder layers
# module by its place in a layer -> nodes that it outputs; names in brackets are its inputs
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
# the same for layers with norms after attention and after the network, as in gemma
OF_NORMED = {
    **OF_LAYER,
    "post_attention_layernorm": ("attn_post_norm",),
    "pre_feedforward_layernorm": ("ffn_norm", "sa_out"),
    "mlp.down_proj": ("ffn_out", "ffn_geglu"),
    "post_feedforward_layernorm": ("ffn_post_norm",),
}
# outputs of these modules include their biases
OF_GPT2 = {
    "": ("l_out",),
    "ln_1": ("attn_norm",),
    "attn.c_attn": ("wqkv_b",),
    "attn.c_proj": (None, "kqv_out"),
    "ln_2": ("ffn_norm", "ffn_inp"),
    "mlp.c_fc": ("ffn_up_b",),
    "mlp.c_proj": ("ffn_out", "ffn_gelu"),
}
OF_BERT = {
    "attention.output.dense": ("kqv_out ADD", "kqv_out CONT"),
    "attention.output.LayerNorm": ("ffn_inp",),
    "intermediate.dense": ("ffn_up_b",),
    "output.dense": ("ffn_out", "ffn_gelu"),
}
OF_OTHERS = {"": OF_LAYER[""]}  # for layers whose parts have other names
TABLES = {  # by a module of the layers; the first that exists counts
    "pre_feedforward_layernorm": OF_NORMED,
    "input_layernorm": OF_LAYER,
    "ln_1": OF_GPT2,
    "attention.output.LayerNorm": OF_BERT,
}
WITH_BIAS = (OF_GPT2, OF_BERT)
OUTSIDE = {"embed_tokens": "embd", "norm": "result_norm", "ln_f": "result_norm", "wte": "embd"}
SCALED = "inp_scaled"  # output of an embedding that multiplies by a factor
LOGITS = "result_output"
SHOWS = [SCALED, *dict.fromkeys(OUTSIDE.values()), LOGITS]
SHOWS += dict.fromkeys(n for own in (OF_LAYER, OF_NORMED) for names in own.values() for n in names)


class TorchModel:
    """A loaded model of transformers, with hooks that record its tensors."""

    def __init__(self, model):
        self.model = model.eval()
        add_biases_last(model)
        self.config = model.config.get_text_config()
        self.shown, self.shows = (
            None,
            {LOGITS: None},
        )  # visible values by names without layers
        self.at, self.layers = layers_of(model, self.config.num_hidden_layers)
        for layer, module in enumerate(self.layers):
            self.watch_layer(layer, module)
        for name, module in model.named_modules():
            before, _, own = name.rpartition(".")
            if own in OUTSIDE and before == self.at.rpartition(".")[0]:
                node = SCALED if hasattr(within(module), "embed_scale") else OUTSIDE[own]
                self.watch(module, node)

    # --- tensors ----------------------------------------------------------------------------------

    def watch(self, module, node):
        self.shows[node] = None
        module.register_forward_hook(lambda *seen: self.show(node, seen[-1]))

    def watch_layer(self, layer, module):
        modules = dict(module.named_modules())
        table = next((TABLES[name] for name in TABLES if name in modules), OF_OTHERS)
        for place, (given, *before) in table.items():
            if place not in modules:
                continue
            if table in WITH_BIAS or getattr(within(modules[place]), "bias", None) is None:
                self.shows |= dict.fromkeys(filter(None, (given, *before)))
                modules[place].register_forward_hook(
                    lambda _, args, out, given=given, before=before: self.see(
                        f"-{layer}", (given, out), (before, args)
                    )
                )

    def see(self, layer, given, before):
        name, value = given
        for earlier in before[0]:
            self.show(earlier + layer, before[1][0])
        if name is not None:
            self.show(name + layer, value)

    def show(self, node, value):
        if self.shown is None:
            return
        value = value[0] if isinstance(value, tuple) else value
        self.shown[node] = self.as_in_the_file(node, value[0].numpy().copy())

    def as_in_the_file(self, node, value):
        """Return the rows of Q and K in the order of the GGUF file, in which the two elements of a
        pair are neighbours."""
        if not node.startswith(("Qcur", "Kcur")) or self.config.model_type not in PERMUTED:
            return value
        halves = value.reshape(len(value), -1, 2, self.layers[0].self_attn.head_dim // 2)
        return halves.swapaxes(2, 3).reshape(value.shape)

    # --- runs -------------------------------------------------------------------------------------

    @torch.no_grad()
    def decode(self, ids, start):
        if start == 0:
            self.cache = DynamicCache(config=self.model.config)
        ids = torch.tensor([ids])
        found = self.model(ids, past_key_values=self.cache, use_cache=True).logits
        self.show(LOGITS, found)
        return found[0].numpy()

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


class Tokenizer:
    """A transformers tokenizer that converts texts to ids and back."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

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


def within(module):
    """Return the module inside a PEFT wrapper. Any other module is returned unchanged."""
    return getattr(module, "base_layer", module)


def add_biases_last(model):
    """Make the model add each bias after the product, as llama.cpp does. torch begins the sum with
    the bias. If the bias is large, torch therefore rounds every term of the sum more coarsely."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module.bias is not None:
            turned = isinstance(module, Conv1D)
            weight = module.weight.T if turned else module.weight
            module.forward = lambda x, w=weight, b=module.bias: torch.nn.functional.linear(x, w) + b


def layers_of(model, n_layers):
    """Return the name and the list of a model's layers: the first module list with this length."""
    for name, module in model.named_modules():
        known = name.rpartition(".")[2] in LAYERS
        if known and isinstance(module, torch.nn.ModuleList) and len(module) == n_layers:
            return name, module
    raise ValueError(f"{type(model).__name__} has no list of {n_layers} layers")
