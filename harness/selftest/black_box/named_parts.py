"""The nodes of llama.cpp's graph that belong to each named part, to check the names.

A name is right if one of its nodes is wrong. Some nodes compute several things. For these nodes, a
second table gives the wrong part by the engine's name. A name that lists several parts means that
the black box cannot distinguish them.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from lockstep.harness.blackbox.numbers import BY_NUMBER, OR_A_TENSOR
from lockstep.harness.selftest.black_box.truth import WrongPlace

# prefix of a name -> pattern of the nodes that it means
NODES: Mapping[str, str] = MappingProxyType(
    {
        # outside the layers
        "embedding": "embd|inp_scaled|inp_embd|pos_embd|inpL|inp_norm|model.embed_tokens",
        "embedding of some tokens, or logits": "embd|inp_scaled|inp_embd|pos_embd|result_output",
        "eps, or the scale of embeddings": "embd|inp_scaled",
        "rounding of what the output norm": "result_norm|result_output",
        "output norm": "result_norm",
        "output matrix": "result_output",
        "what is made of logits": "result_output.*",
        # attention
        "attention: attention norm": "attn_norm|attn_post_norm|model.layers.*norm",
        "attention: rotation": "Qcur_rope|Kcur_rope|q_pe|k_pe",
        "attention: scores": "[QK]cur.*|wqkv.*|kq|kq_scaled.*|k_cache|q .*|q_pe|k_pe|kv_cmpr.*"
        "|q_nope.*|model.layers.*[qk]_layernorm",
        "attention: mask": "k_cache|v_cache",
        "attention: mask, softmax or cache, or heads": "[kv]_cache|kq|kqv.*",
        "attention: heads": "[QKV]cur.*|wqkv.*|kq|kq_soft_max|kqv.*|[kv]_cache",
        "attention: values as they are kept": "v_cache|kqv.*|kq",
        "attention: matrix of values": "Vcur|wqkv|kqv_mla",
        "attention: matrices of keys or values": "Kcur|Vcur",
        "attention: output matrix": "attn_out.*",
        "attention: its norm": "attn_norm|attn_post_norm|Vcur|wqkv|attn_out",
        "attention: bias": ".cur ADD|wqkv_b|attn_out",
        # states and convolutions in models that also have attention layers
        "recurrent part": ".*(conv|ssm|state|mamba|in_proj|out_proj|operator_norm).*|attn_norm",
        # FFN
        "FFN norm": "ffn_norm|ffn_post_norm|attn_post_norm|model.layers.*ffn_out",
        "FFN: up matrix": "ffn_up|ffn_moe_up",
        "FFN: gate matrix": "ffn_gate|ffn_moe_gate",
        "FFN: activation, or gate and up": "ffn_up|ffn_gate|ffn_(moe_)?(swiglu|geglu).*",
        "FFN: down matrix": "ffn_out|ffn_down|ffn_moe_down",
        "FFN: its norm": "ffn_norm|ffn_post_norm|ffn_up|ffn_gate|ffn_out|ffn_down",
        "FFN: activation": "ffn_swiglu|ffn_geglu|ffn_gelu|ffn_moe_swiglu.*",
        "FFN: router: which experts": "ffn_moe_.*",
        "FFN: router: sum of the expert weights": "ffn_moe_(logits|probs|weight).*|ffn_moe_out",
        "FFN: shared experts": "ffn_shexp.*|ffn_out",
        "FFN: bias": "ffn_up_b|ffn_out|ffn_moe_.*biased",
        "tensors: the engine uses another layer": ".*",
        # tensors named by lenses and by tests of matrices in their places
        "token_embd": "embd",
        "output.": "result_output",
        "attn_q.": "Qcur",
        "attn_k.": "Kcur",
        "attn_v.": "Vcur",
        "attn_output.": "attn_out",
        "ffn_gate.": "ffn_gate",
        "ffn_up.": "ffn_up",
        "ffn_down.": "ffn_out",
        "attn_q.weight and attn_k": "Qcur.*|Kcur.*|kq",
        "ffn_up.weight and ffn_gate": "ffn_up|ffn_gate|ffn_swiglu",
    }
)
NORMS = re.compile(r".*norm(ed)?|inp_norm|kv_cmpr|q MUL|model.layers.*norm|model.layers.*ffn_out")
# patterns for answers that name only half a layer
OF_HALF = MappingProxyType(
    {"FFN": "ffn_.*", "attention": "[QKV]cur.*|wqkv.*|attn_.*|kq.*|[kv]_cache"}
)
# names of wrong rotations, wherever their result is used
TURNS = re.compile(r".*(rope|rotat|yarn).*")
# a wrong scale of zero makes all weights equal
SCALE = re.compile(r".*(scale|soft-cap|key-length|all-alike).*")
# names of wrong norms: with a wrong eps; with wrong weights, or shown only by weights
EPS = re.compile(r".*(eps|squares-in-half).*")
WEIGHTS = re.compile(
    r".*(norm-without|weight-before-norm|norm-after-rope|norms-exchanged|one-added|bias-for-weight|of-a-layer).*"
    r"|one-layer:.*norm.*"
)


def is_right(part: str, engine: str, family: str, places: Collection[WrongPlace]) -> bool:
    """Return True if the black box named a part that is really wrong. `places` are the wrong places
    in the part's layer."""
    nodes = {place.node for place in places}
    part = part.removesuffix(f", {BY_NUMBER}")
    if OR_A_TENSOR in part:
        return any(re.fullmatch(OF_HALF[part.partition(":")[0]], node) for node in nodes)
    name = part.removeprefix("attention: ").removeprefix("FFN: ")
    if name.startswith("eps") and any(map(NORMS.fullmatch, nodes)):
        return bool(EPS.fullmatch(engine))
    if name == "eps":
        return False
    if name == "weights of norms":
        return bool(WEIGHTS.fullmatch(engine)) and any(map(NORMS.fullmatch, nodes))
    if "kq_soft_max" in nodes and part.startswith(of_the_softmax(engine)):
        return True
    if part.startswith("attention: rotation") and (family == "rope" or TURNS.fullmatch(engine)):
        return True
    found = max((begin for begin in NODES if part.startswith(begin)), key=len, default="")
    return bool(found) and any(re.fullmatch(NODES[found], node) for node in nodes)


def of_the_softmax(engine: str) -> str:
    """Return the wrong part of the softmax node, which scales, masks, adds sinks and normalises."""
    if "sinks" in engine:
        return "attention: sinks"
    return "attention: scores" if SCALE.fullmatch(engine) else "attention: mask"
