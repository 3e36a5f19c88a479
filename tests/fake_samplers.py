"""A fake engine that samples as our own engine does, but shows fewer lists."""

from lockstep.harness.adapters.parts.sampled_lists import join_lists, split_lists
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import SampleAnswer, SampleRequest


class EndAlone(Reference, name="fake-end-alone"):
    """An engine that shows only the list after a chain's last stage."""

    def sample(self, request: SampleRequest) -> SampleAnswer:
        return join_lists([[row[-1]] for row in split_lists(super().sample(request))])
