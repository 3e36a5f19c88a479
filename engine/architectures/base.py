"""The contract every architecture fulfils: hyperparameters, a table of tensors, a graph."""

from engine.architectures.step import Step
from engine.architectures.tensors import Table, Tensors
from engine.gguf_file import GgufFile
from engine.hparams import Hparams, Keys, Metadata
from engine.kv_cache import KvCache
from engine.ops.reference import RopeParams
from engine.quants.base import F32
from engine.registry import Registered


class Architecture(Registered):
    """Turns token ids into logits, showing each named tensor to a probe on the way."""

    # keys that say something about the model but nothing about its graph
    ignored: frozenset[str] = frozenset(
        {"rope.scaling.original_context_length", "rope.scaling.finetuned"}
    )

    def __init__(self, file: GgufFile) -> None:
        self.hparams = self.read_hparams(file.metadata)
        self.tensors = Tensors(file, self.hparams, self.table(self.hparams))
        self.tensors.check(self.name)
        self.rope_params()

    @classmethod
    def read_hparams(cls, metadata: Metadata) -> Hparams:
        keys = Keys(metadata, cls.name)
        hparams = cls.hparams_of(keys)
        keys.refuse_unread(cls.ignored)
        hparams.check(cls.name)
        return hparams

    @classmethod
    def hparams_of(cls, keys: Keys) -> Hparams:
        raise NotImplementedError

    @classmethod
    def table(cls, hparams: Hparams) -> Table:
        raise NotImplementedError

    def rope_params(self) -> RopeParams | None:
        """How keys are rotated; None if they are not."""
        raise NotImplementedError

    def forward(self, step: Step) -> F32:
        """-> (outputs, vocabulary); the batch's keys and values go into the cache."""
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
