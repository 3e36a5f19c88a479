"""Checks of an engine without tensors: its graph where nothing is converted, and each weight."""

from lockstep.harness.suites.parts.made_models import OnMadeModels


class BlackBox(OnMadeModels, name="black-box"):
    order = 55
