"""Where the engine shows its work: the probe, and the closed list of sites.

A site is the output of one op, under llama.cpp's own name where that is unambiguous. Where one
name stands for several nodes of llama.cpp's graph (`Qcur-0` is a product, a view and a rotation),
the later one carries a suffix here. Adapters translate; nobody invents a name.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteInfo:
    """What computes a site: ggml's op and, for products, the tensor it multiplies by."""

    op: str
    weight: str | None = None  # without "blk.N." and ".weight"
    shape: str  # in words, slowest first
    inputs: tuple[str, ...]  # sites of the same layer; "residual" is the layer's input


SITES: dict[str, SiteInfo] = {
    "embd": SiteInfo(op="GET_ROWS", weight="token_embd", shape="(tokens, width)", inputs=()),
    "attn_norm": SiteInfo(
        op="RMS_NORM", weight="attn_norm", shape="(tokens, width)", inputs=("residual",)
    ),
    "Qcur": SiteInfo(
        op="MUL_MAT", weight="attn_q", shape="(tokens, heads * head_dim)", inputs=("attn_norm",)
    ),
    "Kcur": SiteInfo(
        op="MUL_MAT", weight="attn_k", shape="(tokens, kv_heads * head_dim)", inputs=("attn_norm",)
    ),
    "Vcur": SiteInfo(
        op="MUL_MAT", weight="attn_v", shape="(tokens, kv_heads * head_dim)", inputs=("attn_norm",)
    ),
    "Qcur_rope": SiteInfo(op="ROPE", shape="(tokens, heads, head_dim)", inputs=("Qcur",)),
    "Kcur_rope": SiteInfo(op="ROPE", shape="(tokens, kv_heads, head_dim)", inputs=("Kcur",)),
    "k_cache": SiteInfo(op="SET_ROWS", shape="(cells, kv_heads, head_dim)", inputs=("Kcur_rope",)),
    "v_cache": SiteInfo(op="SET_ROWS", shape="(cells, kv_heads, head_dim)", inputs=("Vcur",)),
    "kq": SiteInfo(op="MUL_MAT", shape="(heads, tokens, cells)", inputs=("Qcur_rope", "k_cache")),
    "kq_soft_max": SiteInfo(op="SOFT_MAX", shape="(heads, tokens, cells)", inputs=("kq",)),
    "kqv_out": SiteInfo(
        op="MUL_MAT", shape="(tokens, heads * head_dim)", inputs=("kq_soft_max", "v_cache")
    ),
    "fattn": SiteInfo(
        op="FLASH_ATTN_EXT",
        shape="(tokens, heads * head_dim)",
        inputs=("Qcur_rope", "k_cache", "v_cache"),
    ),
    "attn_out": SiteInfo(
        op="MUL_MAT", weight="attn_output", shape="(tokens, width)", inputs=("kqv_out", "fattn")
    ),
    "ffn_inp": SiteInfo(op="ADD", shape="(tokens, width)", inputs=("attn_out", "residual")),
    "ffn_norm": SiteInfo(
        op="RMS_NORM", weight="ffn_norm", shape="(tokens, width)", inputs=("ffn_inp",)
    ),
    "ffn_gate": SiteInfo(
        op="MUL_MAT", weight="ffn_gate", shape="(tokens, n_ff)", inputs=("ffn_norm",)
    ),
    "ffn_up": SiteInfo(op="MUL_MAT", weight="ffn_up", shape="(tokens, n_ff)", inputs=("ffn_norm",)),
    "ffn_swiglu": SiteInfo(op="GLU", shape="(tokens, n_ff)", inputs=("ffn_gate", "ffn_up")),
    "ffn_out": SiteInfo(
        op="MUL_MAT", weight="ffn_down", shape="(tokens, width)", inputs=("ffn_swiglu",)
    ),
    "ffn_moe_logits": SiteInfo(
        op="MUL_MAT", weight="ffn_gate_inp", shape="(tokens, experts)", inputs=("ffn_norm",)
    ),
    "ffn_moe_probs": SiteInfo(op="SOFT_MAX", shape="(tokens, experts)", inputs=("ffn_moe_logits",)),
    "ffn_moe_topk": SiteInfo(op="ARGSORT", shape="(tokens, used)", inputs=("ffn_moe_probs",)),
    "ffn_moe_weights": SiteInfo(
        op="GET_ROWS", shape="(tokens, used)", inputs=("ffn_moe_probs", "ffn_moe_topk")
    ),
    "ffn_moe_weights_norm": SiteInfo(op="DIV", shape="(tokens, used)", inputs=("ffn_moe_weights",)),
    "ffn_moe_gate": SiteInfo(
        op="MUL_MAT_ID",
        weight="ffn_gate_exps",
        shape="(tokens, used, n_ff)",
        inputs=("ffn_norm", "ffn_moe_topk"),
    ),
    "ffn_moe_up": SiteInfo(
        op="MUL_MAT_ID",
        weight="ffn_up_exps",
        shape="(tokens, used, n_ff)",
        inputs=("ffn_norm", "ffn_moe_topk"),
    ),
    "ffn_moe_swiglu": SiteInfo(
        op="GLU", shape="(tokens, used, n_ff)", inputs=("ffn_moe_gate", "ffn_moe_up")
    ),
    "ffn_moe_down": SiteInfo(
        op="MUL_MAT_ID",
        weight="ffn_down_exps",
        shape="(tokens, used, width)",
        inputs=("ffn_moe_swiglu", "ffn_moe_topk"),
    ),
    "ffn_moe_weighted": SiteInfo(
        op="MUL", shape="(tokens, used, width)", inputs=("ffn_moe_down", "ffn_moe_weights_norm")
    ),
    "ffn_moe_out": SiteInfo(op="ADD", shape="(tokens, width)", inputs=("ffn_moe_weighted",)),
    "l_out": SiteInfo(
        op="ADD", shape="(tokens, width)", inputs=("ffn_out", "ffn_moe_out", "ffn_inp")
    ),
    "result_norm": SiteInfo(
        op="RMS_NORM", weight="output_norm", shape="(tokens, width)", inputs=("residual",)
    ),
    "result_output": SiteInfo(
        op="MUL_MAT", weight="output", shape="(tokens, vocabulary)", inputs=("result_norm",)
    ),
}


LISTED = ("llama",)  # the architectures whose every result is a site


class Probe(Protocol):
    """Called with every site's value, in execution order; what it returns flows on.

    Returning the argument observes. Returning another engine's value for the site makes the ops
    that follow work on that engine's inputs (teacher forcing): that is how one op is judged alone.
    """

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]: ...


def silent(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
    """The probe that neither records nor replaces."""
    return value
