"""Takes the chosen experts by their id, and shows all that belongs to them in that order."""

from dataclasses import replace

import numpy as np

from engine.ops.mirror import Mirror
from engine.ops.reference import I32
from engine.quants.base import F32
from harness.designs import PER_EXPERT, reordered
from harness.honest.base import Honest
from harness.records import Evaluation, Request, Site


class ById(Mirror):
    def top_k(self, probs: F32, n: int) -> I32:
        return np.sort(super().top_k(probs, n), axis=-1)


class ExpertsById(Honest, name="honest:experts-by-id"):
    """Engines that go through the experts and not through the choices, as Mixtral's in Hugging Face
    transformers. What is put in comes in the order of the ids that are put in, and is sorted."""

    ops = ById
    design = "experts in the order of their ids"
    shows_on = "moe-q8_0"

    def evaluate(self, request: Request) -> Evaluation:
        values = dict(request.replace)
        for site, ids in request.replace.items():
            if site.name == "ffn_moe_topk":
                order = np.argsort(ids, axis=-1)
                for name in PER_EXPERT:
                    at = Site(step=site.step, layer=site.layer, name=name)
                    if at in values:
                        values[at] = reordered(values[at], order)
        return super().evaluate(replace(request, replace=values))
