"""The contract every architecture fulfils."""

from engine.batch import Batch
from engine.gguf_file import GgufFile
from engine.hparams import Hparams, Metadata
from engine.kv_cache import KvCache
from engine.ops.reference import Reference
from engine.quants.base import F32
from engine.registry import Registered
from engine.trace import Probe, silent
from engine.weights import Weights


class Architecture(Registered):
    """Turns token ids into logits, showing each named tensor to a probe on the way."""

    hparams: Hparams

    def __init__(self, file: GgufFile) -> None:
        self.hparams = self.read_hparams(file.metadata)
        self.weights = Weights(file)
        self.check_tensors()

    @classmethod
    def read_hparams(cls, metadata: Metadata) -> Hparams:
        raise NotImplementedError

    def check_tensors(self) -> None:
        """Refuse a file that lacks a tensor, or that has one which would go unused."""
        raise NotImplementedError

    def new_cache(self, *, n_ctx: int, type_k: str, type_v: str) -> KvCache:
        hp = self.hparams
        return KvCache(
            n_layer=hp.n_layer,
            n_head_kv=hp.n_head_kv,
            n_embd_head=hp.n_embd_head,
            n_ctx=n_ctx,
            type_k=type_k,
            type_v=type_v,
        )

    def decode(
        self,
        batch: Batch,
        cache: KvCache,
        ops: Reference,
        *,
        flash_attn: bool,
        probe: Probe = silent,
    ) -> F32:
        """-> (outputs, vocabulary); the batch's keys and values go into the cache."""
        raise NotImplementedError
