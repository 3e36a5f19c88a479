"""Random models on which Lockstep once wrongly accused a correct engine."""

import pytest

from lockstep.harness.selftest.clean_cases import try_clean


@pytest.mark.parametrize(
    "seed",
    [
        9013,  # nearly equal experts, so that noise decides which token is the most likely
        9116,  # flash attention whose values cancel, and whose remainder is rounded again
    ],
)
def test_a_clean_case_raises_no_alarm(seed: int) -> None:
    assert try_clean(seed).wrong == ()
