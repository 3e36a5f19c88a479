"""Mistakes that no acid test sees, and why: what text cannot show, and what is not written yet."""

REASONS = (
    (
        "small errors of rounding (norms, scores, caches, logits or activations in F16, BF16, TF32 "
        "or eight bits; a rough exponential; rotary tables in BF16)",
        "they lie within the margin that honest engines need",
    ),
    (
        "a position off by one everywhere, logits scaled, log-probabilities for logits, the "
        "last norm twice without its weight",
        "greedy text is the same",
    ),
    (
        "second batches, several sequences, caches shifted or not cleared, outputs of rows "
        "that were not asked for",
        "one prompt, written once, never gets there",
    ),
    (
        "embeddings of other ids, a column-major file, a head that is always tied, matrices "
        "transposed, the second-best token chosen, a bare NaN",
        "there is no report: what is written is not the beginning of one",
    ),
    (
        "races and rows beyond a tile",
        "they show now and then, in whatever test is running",
    ),
    (
        "frequency factors, linear and YaRN scaling, windows, soft caps, sinks, biases, norms of "
        "heads, experts, latent attention, recurrent states, tokenizers",
        "no acid model of theirs is written yet",
    ),
)
