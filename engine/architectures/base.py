"""The contract every architecture fulfils: hyperparameters, a table of tensors, a graph."""

from lockstep.engine.architectures.step import Step
from lockstep.engine.architectures.tensors import Table, Tensors
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.hparams import Hparams, Keys, Metadata
from lockstep.engine.memory.recurrent import States
from lockstep.engine.memory.store import KeysValues
from lockstep.engine.ops.reference import RopeParams
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import Registered
from lockstep.engine.weights import Weight


class Architecture(Registered):
    """Turns token ids into logits, showing each named tensor to a probe on the way."""

    # keys about the model that do not change its graph
    ignored: frozenset[str] = frozenset({"rope.scaling.finetuned"})

    embeds = False  # True: the model gives embeddings and no logits

    causal = True  # False: tokens also see later tokens, and nothing is cached

    def __init__(self, file: GgufFile, n_ctx: int = 512) -> None:
        """Read and check the hyperparameters and tensors. n_ctx: the maximum number of tokens in a
        sequence; in some models it changes the rotation.
        """
        self.n_ctx = n_ctx
        self.hparams = self.read_hparams(file.metadata)
        self.tensors = Tensors(file, self.hparams, self.table(self.hparams))
        self.tensors.check(self.name, self.kinds)
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

    def kinds(self, layer: int) -> tuple[str, ...]:
        """Return the kinds of a layer, as the table of tensors names them."""
        return ()

    def rope_params(self, layer: int = 0) -> RopeParams | None:
        """Return the rotation of keys, or None for keys that are not rotated."""
        raise NotImplementedError

    def forward(self, step: Step) -> F32:
        """Compute the batch's logits: (outputs, vocabulary). The batch's keys and values go into
        the cache."""
        raise NotImplementedError

    # --- parts of most graphs, each shown under its name -------------------------------------

    def linear(self, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        """Apply a linear layer. x: (tokens, inputs) -> (tokens, outputs)"""
        weight = self.tensors.in_layer(layer, f"{name}.weight")
        out: F32 = step.probe(site, layer, step.ops.linear(x, weight))
        return out

    def compute_together(self, step: Step, layer: int, x: F32, *names: str) -> None:
        """Announce that products of `x` with these weights come next."""
        weights = [self.tensors.in_layer(layer, f"{name}.weight") for name in names]
        step.ops.compute_together(x, weights)

    def add_bias(self, step: Step, layer: int, site: str, x: F32, name: str, summed: str) -> F32:
        """Add a bias to a product. `summed` is the name of the sum; "" if it has no name."""
        h = self.linear(step, layer, site, x, name)
        out = step.ops.add(h, self.tensors.in_layer(layer, f"{name}.bias").values())
        return step.probe(summed, layer, out) if summed else out

    def norm(self, step: Step, layer: int, site: str, x: F32, name: str = "") -> F32:
        """Return the RMS norm over the last axis. The probe sees the result unless `site` is
        empty."""
        weight = self.tensors.in_layer(layer, f"{name or site}.weight").values()
        out: F32 = step.ops.rms_norm(x, weight, self.hparams.f_norm_rms_eps)
        return step.probe(site, layer, out) if site else out

    def head(self) -> Weight:
        """Return the output matrix, or the embeddings if the file has no output matrix."""
        w = self.tensors
        return w["output.weight" if "output.weight" in w else "token_embd.weight"]

    # --- memory ------------------------------------------------------------------------------

    def window(self, layer: int) -> int:
        """Return how many tokens each token of a layer sees, itself included; 0: all tokens before
        it.
        """
        return 0

    def rotated_part(self) -> slice:
        """Return the slice of a stored key that is rotated."""
        return slice(None)

    def memory_of_layer(self, layer: int) -> KeysValues | States:
        """Return the shapes of the data that a layer keeps in memory."""
        hp = self.hparams
        return KeysValues(hp.n_head_kv, hp.n_embd_head, hp.n_embd_head, self.window(layer))
