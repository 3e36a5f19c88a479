"""The default models of `lockstep check`, which are all seeded."""

from lockstep.harness.synth.llama import LlamaRecipe
from lockstep.harness.synth.vocabularies import KINDS

BUILTIN: dict[str, LlamaRecipe] = {
    "f32": LlamaRecipe(seed=1, quant="F32"),
    "f16": LlamaRecipe(seed=2, quant="F16", tied=True, n_head=8, n_head_kv=8, n_ff=160),
    "bf16": LlamaRecipe(seed=3, quant="BF16", n_head_kv=1, rope_freqs=True),
    "q8_0": LlamaRecipe(seed=4, quant="Q8_0", n_layer=3, n_embd=96, n_head=6, n_head_kv=3),
    "q4_0": LlamaRecipe(seed=5, quant="Q4_0", n_embd_head=32, rope_linear_factor=2.0, n_ff=128),
    "moe": LlamaRecipe(seed=6, quant="F32", n_expert=4, n_expert_used=2),
    "moe-q8_0": LlamaRecipe(seed=7, quant="Q8_0", n_expert=8, n_expert_used=3, tied=True),
    # values that engines may have as constants, because many models share them. The model is small,
    # because other models cover the rest. The rope base is so low that every pair rotates.
    "hparams": LlamaRecipe(
        seed=8, quant="F32", n_layer=1, n_ff=64, rope_freq_base=2500.0, f_norm_rms_eps=4e-5
    ),
}

# a vocabulary of every kind, in the smallest model that llama.cpp loads and runs
BUILTIN_VOCABULARIES: dict[str, LlamaRecipe] = {
    kind: LlamaRecipe(
        seed=20 + i, vocab_kind=kind, n_vocab=640, n_layer=1, n_embd=16, n_head=2, n_ff=32
    )
    for i, kind in enumerate(KINDS)
}
