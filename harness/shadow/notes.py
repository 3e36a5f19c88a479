"""Bounds far above the observed errors: an op far better than its bound gets a note.

Such an op may round less often than we count (a wider accumulator), or the bound may hide faults. k
roundings of random signs add up to about the root of k of them. Honest errors can be smaller by a
few factors of two: a rounding is uniform below its bound (root of 3), a mantissa lies anywhere
between one and two (1.4), partial sums are smaller than the whole (2), and the last roundings of a
tree count more than the first. Below an eighth of the root, in a thousand elements, not
chance but the count is wrong. A note is no failure.
"""

ELEMENTS = 1000  # the worst of so many is no accident
EIGHTH = 1 / 8


def note_of(op: str, free: int, reach: float, worst: float) -> str:
    """Return a note on a Tally's counts; "" if the roundings are as counted. worst: the largest
    share of the bound."""
    if free < ELEMENTS or reach >= EIGHTH:
        return ""
    if worst == 0.0:
        return (
            f"{op}: all {free} elements are correctly rounded, and the bound counts more "
            "roundings. The op has a higher precision than we assume, or the elements "
            "are few"
        )
    return (
        f"{op}: the worst of {free} elements reaches {worst:.1g} of its bound, "
        f"{EIGHTH / reach:.1f} times less than an eighth of the sum of random roundings. "
        "The op is more exact than we assume, or the bound is too wide to show a fault"
    )
