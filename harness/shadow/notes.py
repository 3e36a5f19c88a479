"""Notes on ops whose errors are far below their bound.

Such an op may round less often than we assume, for example with a wider accumulator. Or its bound
is so wide that it hides faults. k roundings with random signs add up to about sqrt(k) times one
rounding. Honest errors can be smaller by small factors: a rounding is uniform below its bound
(sqrt(3)), a mantissa lies anywhere between one and two (1.4), partial sums are smaller than the
whole (2), and the last roundings of a tree of sums are larger than the first. If the errors of a
thousand elements stay below an eighth of the expected size, this is not chance: the assumed number
of roundings is wrong. A note is not a failure.
"""

ELEMENTS = 1000  # the worst of so many elements is no coincidence
EIGHTH = 1 / 8


def note_of(op: str, free: int, reach: float, worst: float) -> str:
    """Return a note on the counts of a Tally; "" if the errors agree with the assumed number of
    roundings. `worst` is the largest share of the bound."""
    if free < ELEMENTS or reach >= EIGHTH:
        return ""
    if worst == 0.0:
        return (
            f"{op}: all {free} elements are correctly rounded, but the bound counts more "
            "roundings. The op has a higher precision than we assume, or the elements "
            "are few"
        )
    return (
        f"{op}: the worst of {free} elements reaches {worst:.1g} of its bound, "
        f"{EIGHTH / reach:.1f} times less than an eighth of the sum of random roundings. "
        "The op is more exact than we assume, or the bound is too wide to show a fault"
    )
