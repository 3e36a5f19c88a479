"""Architectures: the classes that config.json names, transformers' default values, and tables of
tensors.

A row of a table holds the tensor of the GGUF file, the tensor of the checkpoint (without its
prefix), and the recipe if the tensor is not copied unchanged. If several rows name one tensor, the
first row whose original exists is used. `*` stands for a layer, and `#` for an expert.

Sources: the checkpoints' published definitions (transformers) and the converter of llama.cpp.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep.harness.originals.recipes import RECIPES


class TensorRule(NamedTuple):
    """A row of a table of tensors."""

    name: str
    original: str
    recipe: str


def table_rules(text: str) -> tuple[TensorRule, ...]:
    """Return the rows of a table in text form."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        name, original, *recipe = line.split()
        assert not recipe or recipe[0] in RECIPES, line
        found.append(TensorRule(name, original, recipe[0] if recipe else "copy"))
    return tuple(found)


OUTSIDE = """
    token_embd.weight   embed_tokens.weight  vocabulary
    output_norm.weight  norm.weight
    output.weight       lm_head.weight       vocabulary
"""
HEADS = """
    blk.*.attn_norm.weight    layers.*.input_layernorm.weight
    blk.*.attn_q.weight       layers.*.self_attn.q_proj.weight
    blk.*.attn_k.weight       layers.*.self_attn.k_proj.weight
    blk.*.attn_v.weight       layers.*.self_attn.v_proj.weight
    blk.*.attn_q.bias         layers.*.self_attn.q_proj.bias
    blk.*.attn_k.bias         layers.*.self_attn.k_proj.bias
    blk.*.attn_v.bias         layers.*.self_attn.v_proj.bias
    blk.*.attn_output.weight  layers.*.self_attn.o_proj.weight
    blk.*.attn_output.bias    layers.*.self_attn.o_proj.bias
    blk.*.ffn_norm.weight     layers.*.post_attention_layernorm.weight
"""
TURNED = (
    HEADS.replace("q_proj.weight", "q_proj.weight  q-pairs")
    .replace("k_proj.weight", "k_proj.weight  k-pairs")
    .replace("q_proj.bias", "q_proj.bias  q-pairs")
    .replace("k_proj.bias", "k_proj.bias  k-pairs")
)
NORMS = """
    blk.*.attn_q_norm.weight  layers.*.self_attn.q_norm.weight
    blk.*.attn_k_norm.weight  layers.*.self_attn.k_norm.weight
"""
DENSE = """
    blk.*.ffn_gate.weight  layers.*.mlp.gate_proj.weight
    blk.*.ffn_up.weight    layers.*.mlp.up_proj.weight
    blk.*.ffn_down.weight  layers.*.mlp.down_proj.weight
    blk.*.ffn_gate.bias    layers.*.mlp.gate_proj.bias
    blk.*.ffn_up.bias      layers.*.mlp.up_proj.bias
    blk.*.ffn_down.bias    layers.*.mlp.down_proj.bias
"""
MERGED_EXPERTS = """
    blk.*.ffn_gate_exps.weight  layers.*.mlp.experts.gate_up_proj  first-half
    blk.*.ffn_up_exps.weight    layers.*.mlp.experts.gate_up_proj  second-half
    blk.*.ffn_down_exps.weight  layers.*.mlp.experts.down_proj
"""
MIXTRAL = f"""
    blk.*.ffn_gate_inp.weight   layers.*.block_sparse_moe.gate.weight
    blk.*.ffn_gate_inp.weight   layers.*.mlp.gate.weight
    blk.*.ffn_gate_exps.weight  layers.*.block_sparse_moe.experts.#.w1.weight
    blk.*.ffn_up_exps.weight    layers.*.block_sparse_moe.experts.#.w3.weight
    blk.*.ffn_down_exps.weight  layers.*.block_sparse_moe.experts.#.w2.weight
    {MERGED_EXPERTS.strip()}
"""
EXPERTS = f"""
    blk.*.ffn_gate_inp.weight   layers.*.mlp.gate.weight
    blk.*.ffn_gate_exps.weight  layers.*.mlp.experts.#.gate_proj.weight
    blk.*.ffn_up_exps.weight    layers.*.mlp.experts.#.up_proj.weight
    blk.*.ffn_down_exps.weight  layers.*.mlp.experts.#.down_proj.weight
    {MERGED_EXPERTS.strip()}
"""
GEMMA = f"""
    token_embd.weight                 embed_tokens.weight  vocabulary
    output.weight                     lm_head.weight       vocabulary
    output_norm.weight                norm.weight  plus-one
    blk.*.attn_norm.weight            layers.*.input_layernorm.weight  plus-one
    blk.*.post_attention_norm.weight  layers.*.post_attention_layernorm.weight  plus-one
    blk.*.ffn_norm.weight             layers.*.pre_feedforward_layernorm.weight  plus-one
    blk.*.post_ffw_norm.weight        layers.*.post_feedforward_layernorm.weight  plus-one
    blk.*.attn_q_norm.weight          layers.*.self_attn.q_norm.weight  plus-one
    blk.*.attn_k_norm.weight          layers.*.self_attn.k_norm.weight  plus-one
    blk.*.attn_q.weight               layers.*.self_attn.q_proj.weight
    blk.*.attn_k.weight               layers.*.self_attn.k_proj.weight
    blk.*.attn_v.weight               layers.*.self_attn.v_proj.weight
    blk.*.attn_output.weight          layers.*.self_attn.o_proj.weight
    {DENSE.strip()}
"""
PHI3 = f"""
    {OUTSIDE.strip()}
    blk.*.attn_norm.weight    layers.*.input_layernorm.weight
    blk.*.attn_qkv.weight     layers.*.self_attn.qkv_proj.weight
    blk.*.attn_output.weight  layers.*.self_attn.o_proj.weight
    blk.*.ffn_norm.weight     layers.*.post_attention_layernorm.weight
    blk.*.ffn_up.weight       layers.*.mlp.gate_up_proj.weight
    blk.*.ffn_down.weight     layers.*.mlp.down_proj.weight
"""
GPT2 = """
    token_embd.weight         wte.weight  vocabulary
    position_embd.weight      wpe.weight
    blk.*.attn_norm.weight    h.*.ln_1.weight
    blk.*.attn_norm.bias      h.*.ln_1.bias
    blk.*.attn_qkv.weight     h.*.attn.c_attn.weight  transposed
    blk.*.attn_qkv.bias       h.*.attn.c_attn.bias
    blk.*.attn_output.weight  h.*.attn.c_proj.weight  transposed
    blk.*.attn_output.bias    h.*.attn.c_proj.bias
    blk.*.ffn_norm.weight     h.*.ln_2.weight
    blk.*.ffn_norm.bias       h.*.ln_2.bias
    blk.*.ffn_up.weight       h.*.mlp.c_fc.weight  transposed
    blk.*.ffn_up.bias         h.*.mlp.c_fc.bias
    blk.*.ffn_down.weight     h.*.mlp.c_proj.weight  transposed
    blk.*.ffn_down.bias       h.*.mlp.c_proj.bias
    output_norm.weight        ln_f.weight
    output_norm.bias          ln_f.bias
    output.weight             lm_head.weight  vocabulary
"""
BERT = """
    token_embd.weight               embeddings.word_embeddings.weight  vocabulary
    position_embd.weight            embeddings.position_embeddings.weight
    token_types.weight              embeddings.token_type_embeddings.weight
    token_embd_norm.weight          embeddings.LayerNorm.weight
    token_embd_norm.bias            embeddings.LayerNorm.bias
    blk.*.attn_q.weight             encoder.layer.*.attention.self.query.weight
    blk.*.attn_q.bias               encoder.layer.*.attention.self.query.bias
    blk.*.attn_k.weight             encoder.layer.*.attention.self.key.weight
    blk.*.attn_k.bias               encoder.layer.*.attention.self.key.bias
    blk.*.attn_v.weight             encoder.layer.*.attention.self.value.weight
    blk.*.attn_v.bias               encoder.layer.*.attention.self.value.bias
    blk.*.attn_output.weight        encoder.layer.*.attention.output.dense.weight
    blk.*.attn_output.bias          encoder.layer.*.attention.output.dense.bias
    blk.*.attn_output_norm.weight   encoder.layer.*.attention.output.LayerNorm.weight
    blk.*.attn_output_norm.bias     encoder.layer.*.attention.output.LayerNorm.bias
    blk.*.ffn_up.weight             encoder.layer.*.intermediate.dense.weight
    blk.*.ffn_up.bias               encoder.layer.*.intermediate.dense.bias
    blk.*.ffn_down.weight           encoder.layer.*.output.dense.weight
    blk.*.ffn_down.bias             encoder.layer.*.output.dense.bias
    blk.*.layer_output_norm.weight  encoder.layer.*.output.LayerNorm.weight
    blk.*.layer_output_norm.bias    encoder.layer.*.output.LayerNorm.bias
"""
BUFFERS = r".*\.rotary_emb\.inv_freq"
VISION = r"(vision_tower|multi_modal_projector|visual)\..*"
LLAMA_PREFIX = r"(model\.)?(language_model\.)?(model\.)?"


@dataclass(frozen=True, kw_only=True)
class OriginalArchitecture:
    """A GGUF architecture, and the checkpoints from which it is made.

    prefix: the beginning of tensor names in most checkpoints; some checkpoints omit it. ignored:
    the checkpoint's tensors that no GGUF file has, named without the prefix.
    """

    name: str
    models: tuple[str, ...]
    rules: tuple[TensorRule, ...]
    prefix: str = LLAMA_PREFIX
    ignored: str = f"{BUFFERS}|{VISION}"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # every so many-th layer has no window, and all others have one; 0: no layer has a window
    window_every: int = 0

    def strip_prefix(self, name: str) -> str:
        """Return a checkpoint tensor's name without the prefix, as the table has it."""
        found = re.match(self.prefix, name)
        return name[found.end() :] if found else name


GEMMA3_TEXT = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
GEMMA2_TEXT = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
LLAMA_TEXT = {"rms_norm_eps": 1e-6, "rope_theta": 1e4}
GPT2_TEXT = {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
BERT_TEXT = {"layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "gelu"}

ARCHITECTURES = (
    OriginalArchitecture(
        name="llama",
        models=("LlamaForCausalLM", "LlamaModel", "MistralForCausalLM", "MixtralForCausalLM"),
        rules=table_rules(OUTSIDE + TURNED + DENSE + MIXTRAL),
        defaults=LLAMA_TEXT,
    ),
    OriginalArchitecture(
        name="qwen2",
        models=("Qwen2ForCausalLM", "Qwen2Model"),
        rules=table_rules(OUTSIDE + HEADS + DENSE),
        defaults=LLAMA_TEXT,
    ),
    OriginalArchitecture(
        name="qwen3",
        models=("Qwen3ForCausalLM", "Qwen3Model"),
        rules=table_rules(OUTSIDE + HEADS + NORMS + DENSE),
        defaults=LLAMA_TEXT | {"head_dim": 128},
    ),
    OriginalArchitecture(
        name="qwen3moe",
        models=("Qwen3MoeForCausalLM",),
        rules=table_rules(OUTSIDE + HEADS + NORMS + EXPERTS),
        defaults=LLAMA_TEXT | {"norm_topk_prob": False},
    ),
    OriginalArchitecture(
        name="gemma2",
        models=("Gemma2ForCausalLM",),
        rules=table_rules(GEMMA),
        defaults=GEMMA2_TEXT,
        window_every=2,
    ),
    OriginalArchitecture(
        name="gemma3",
        models=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        rules=table_rules(GEMMA),
        defaults=GEMMA3_TEXT,
        window_every=6,
    ),
    OriginalArchitecture(
        name="phi3",
        models=("Phi3ForCausalLM",),
        rules=table_rules(PHI3),
        defaults=LLAMA_TEXT | {"rms_norm_eps": 1e-5},
    ),
    OriginalArchitecture(
        name="gpt2",
        models=("GPT2LMHeadModel", "GPT2Model"),
        rules=table_rules(GPT2),
        prefix=r"(transformer\.)?",
        ignored=r"h\.\d+\.attn\.(masked_)?bias",
        defaults=GPT2_TEXT,
    ),
    OriginalArchitecture(
        name="bert",
        models=("BertModel", "BertForMaskedLM"),
        rules=table_rules(BERT),
        prefix=r"(bert\.)?",
        ignored=r"embeddings\.position_ids|pooler\..*|cls\..*",
        defaults=BERT_TEXT,
    ),
)
