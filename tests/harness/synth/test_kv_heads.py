"""Generated models in which heads share KV heads."""

import pytest

from lockstep.harness.synth.variant_extras import SIZES


@pytest.mark.parametrize("arch", ["rnd1", "chatglm", "olmo2", "qwen35", "gemma4", "nemotron_h"])
def test_heads_share_kv_heads_as_in_published_models(arch: str) -> None:
    """All ways of sharing are the same if there is only one KV head, or as many KV heads as
    heads."""
    sizes = SIZES[arch]
    assert sizes.n_head > sizes.kv_heads > 1
