"""Parts that only long texts show: the ends of windows, and the factors of long contexts."""

from lockstep.harness.suites.parts.made_models import OnMadeModels


class LongContext(OnMadeModels, name="long-context"):
    order = 41
