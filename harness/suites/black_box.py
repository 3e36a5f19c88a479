"""Checks of the graph, without conversions, and of each weight, for an engine that shows no
tensors."""

from lockstep.harness.suites.parts.made_models import OnMadeModels


class BlackBox(OnMadeModels, name="black-box"):
    order = 55
