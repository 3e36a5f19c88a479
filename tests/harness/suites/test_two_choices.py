"""What is said of a greedy token where the texts part, or where the oracle parts from itself."""

from lockstep.harness.suites.parts.pieces import two_choices


def test_of_two_tokens_each_is_named_with_what_it_lacks() -> None:
    assert two_choices(365, 372, (0.0, 0.089)) == (
        "372, the oracle's 365; they are 0.089 and 0 below the oracle's largest logit"
    )


def test_one_token_of_both_is_not_said_to_be_two() -> None:
    """llama.cpp's choice token by token need not be that of its run of all tokens at once."""
    text = two_choices(1116, 1116, (0.043, 0.043))
    assert text.startswith("1116 in both, 0.043 below")
    assert "they are" not in text
