"""Comparison of parts that only long texts show, such as the ends of windows and the factors of
long contexts."""

from lockstep.harness.suites.parts.made_models import OnMadeModels


class LongContext(OnMadeModels, name="long-context"):
    order = 41
