"""Of an engine without tensors: is its graph right where nothing is converted, is each weight?"""

from lockstep.harness.suites.parts.made_models import OnMadeModels


class BlackBox(OnMadeModels, name="black-box"):
    order = 55
