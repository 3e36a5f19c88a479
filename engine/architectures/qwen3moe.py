"""qwen3moe: qwen3 with a mixture of experts; weights of the chosen experts are scaled to sum to
one.

From the model's published definition (Qwen3 technical report; Qwen3MoeSparseMoeBlock of
transformers).
"""

from lockstep.engine.architectures.llama import EXPERTS, TENSORS
from lockstep.engine.architectures.qwen3 import NORMS, Qwen3
from lockstep.engine.architectures.tensors import Table
from lockstep.engine.errors import InvalidModel
from lockstep.engine.hparams import Hparams, Keys


class Qwen3Moe(Qwen3, name="qwen3moe"):
    @classmethod
    def hparams_of(cls, keys: Keys) -> Hparams:
        hparams = super().hparams_of(keys)
        if not hparams.n_expert:
            raise InvalidModel("qwen3moe.expert_count is missing or 0")
        return hparams

    @classmethod
    def n_ff(cls, keys: Keys) -> int:
        """Return the feed-forward length of one expert; the file also states an unused dense
        length.
        """
        keys.positive("feed_forward_length")
        return keys.positive("expert_feed_forward_length")

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        return {**TENSORS, **NORMS, **EXPERTS}
