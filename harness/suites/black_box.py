"""Checks of an engine without tensors: its graph without conversions, and each weight."""

from lockstep.harness.suites.parts.made_models import OnMadeModels


class BlackBox(OnMadeModels, name="black-box"):
    order = 55
