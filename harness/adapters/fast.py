"""Our compiled engine, which never judges another engine."""

from lockstep.engine.model import Model
from lockstep.engine.ops.fast.ops import Fast
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.harness.adapters.reference import Reference


class FastEngine(Reference, name="fast"):
    def make_ops(self) -> Ops:
        return Fast(n_threads=self.settings.n_threads)

    def make_model(self) -> Model:
        """Return the model, and keep the pages of its file mapped, because mapping them again takes
        as long as computing two tokens."""
        model = super().make_model()
        model.keeps_pages = True
        return model
