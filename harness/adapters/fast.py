"""Our engine as it is run, compiled; never used to judge."""

from engine.ops.fast import Fast
from engine.ops.reference import Reference as Ops
from harness.adapters.reference import Reference


class FastEngine(Reference, name="fast"):
    def make_ops(self) -> Ops:
        return Fast(n_threads=self.settings.n_threads)
