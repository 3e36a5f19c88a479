"""Names of nodes in traces, for graphs like llama's, in every version of llama.cpp.

If several nodes of llama.cpp's graph share a name (`Qcur-0` is a product, a view and a rotation),
the later nodes have a suffix here. Traces may also contain any other name from llama.cpp's
graph.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteInfo:
    """A site's ggml op, its weight tensor, if any, and the shape of its values."""

    op: str
    weight: str | None = None  # name without "blk.N." and ".weight"
    shape: str  # description, slowest axis first


SITES: dict[str, SiteInfo] = {
    "embd": SiteInfo(op="GET_ROWS", weight="token_embd", shape="(tokens, width)"),
    "attn_norm": SiteInfo(op="RMS_NORM", weight="attn_norm", shape="(tokens, width)"),
    "Qcur": SiteInfo(op="MUL_MAT", weight="attn_q", shape="(tokens, heads * head_dim)"),
    "Kcur": SiteInfo(op="MUL_MAT", weight="attn_k", shape="(tokens, kv_heads * head_dim)"),
    "Vcur": SiteInfo(op="MUL_MAT", weight="attn_v", shape="(tokens, kv_heads * head_dim)"),
    "Qcur_rope": SiteInfo(op="ROPE", shape="(tokens, heads, head_dim)"),
    "Kcur_rope": SiteInfo(op="ROPE", shape="(tokens, kv_heads, head_dim)"),
    "k_cache": SiteInfo(op="SET_ROWS", shape="(cells, kv_heads, head_dim)"),
    "v_cache": SiteInfo(op="SET_ROWS", shape="(cells, kv_heads, head_dim)"),
    "kq": SiteInfo(op="MUL_MAT", shape="(heads, tokens, cells)"),
    "kq_soft_max": SiteInfo(op="SOFT_MAX", shape="(heads, tokens, cells)"),
    "kqv_out": SiteInfo(op="MUL_MAT", shape="(tokens, heads * head_dim)"),
    "fattn": SiteInfo(op="FLASH_ATTN_EXT", shape="(tokens, heads * head_dim)"),
    "attn_out": SiteInfo(op="MUL_MAT", weight="attn_output", shape="(tokens, width)"),
    "ffn_inp": SiteInfo(op="ADD", shape="(tokens, width)"),
    "ffn_norm": SiteInfo(op="RMS_NORM", weight="ffn_norm", shape="(tokens, width)"),
    "ffn_gate": SiteInfo(op="MUL_MAT", weight="ffn_gate", shape="(tokens, n_ff)"),
    "ffn_up": SiteInfo(op="MUL_MAT", weight="ffn_up", shape="(tokens, n_ff)"),
    "ffn_swiglu": SiteInfo(op="GLU", shape="(tokens, n_ff)"),
    "ffn_out": SiteInfo(op="MUL_MAT", weight="ffn_down", shape="(tokens, width)"),
    "ffn_moe_logits": SiteInfo(op="MUL_MAT", weight="ffn_gate_inp", shape="(tokens, experts)"),
    "ffn_moe_probs": SiteInfo(op="SOFT_MAX", shape="(tokens, experts)"),
    "ffn_moe_topk": SiteInfo(op="ARGSORT", shape="(tokens, used)"),
    "ffn_moe_weights": SiteInfo(op="GET_ROWS", shape="(tokens, used)"),
    "ffn_moe_weights_norm": SiteInfo(op="DIV", shape="(tokens, used)"),
    "ffn_moe_gate": SiteInfo(op="MUL_MAT_ID", weight="ffn_gate_exps", shape="(tokens, used, n_ff)"),
    "ffn_moe_up": SiteInfo(op="MUL_MAT_ID", weight="ffn_up_exps", shape="(tokens, used, n_ff)"),
    "ffn_moe_swiglu": SiteInfo(op="GLU", shape="(tokens, used, n_ff)"),
    "ffn_moe_down": SiteInfo(
        op="MUL_MAT_ID", weight="ffn_down_exps", shape="(tokens, used, width)"
    ),
    "ffn_moe_weighted": SiteInfo(op="MUL", shape="(tokens, used, width)"),
    "ffn_moe_out": SiteInfo(op="ADD", shape="(tokens, width)"),
    "l_out": SiteInfo(op="ADD", shape="(tokens, width)"),
    "result_norm": SiteInfo(op="RMS_NORM", weight="output_norm", shape="(tokens, width)"),
    "result_output": SiteInfo(op="MUL_MAT", weight="output", shape="(tokens, vocabulary)"),
}

# --- tensors of the file ---

IN_A_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
# tensors, with their biases, whose results a half of a layer adds to the residual
ATTENTION_OUT = ("attn_output", "attn_out", "ssm_out", "time_mix_output", "shortconv.out_proj")
# proj: in gemma4, tokens have an embedding for each layer, which is added after the FFN
FFN_OUT = (
    *("ffn_down", "ffn_down_exps", "ffn_down_shexp", "ffn_down_chexps"),
    *("channel_mix_value", "proj"),
)
ENDS_OF_HALVES = ATTENTION_OUT + FFN_OUT


def is_one_of(name: str, parts: Sequence[str]) -> bool:
    """Return True if the tensor belongs to one of these parts. `name` has no layer, such as
    attn_output.bias."""
    return name.rsplit(".", 1)[0] in parts


def is_matrix_of(tensor: str, parts: Sequence[str]) -> bool:
    """Return True for a layer's matrix, such as `blk.0.attn_output.weight`, whose part name is one
    of `parts`."""
    inside = IN_A_LAYER.fullmatch(tensor)
    return bool(inside and inside[2].endswith(".weight") and is_one_of(inside[2], parts))
