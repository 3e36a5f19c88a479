"""Mistakes that no acid test finds, with reasons: not visible in text, or not implemented yet."""

REASONS = (
    (
        "small errors of rounding (norms, scores, caches, logits or activations in F16, BF16, TF32 "
        "or eight bits; a rough exponential; rotary tables in BF16)",
        "they lie within the margin that honest engines need",
    ),
    (
        "positions that are all off by one, scaled logits, log-probabilities instead of logits, a "
        "last norm that is repeated without its weight",
        "greedy text is the same",
    ),
    (
        "second batches, several sequences, caches shifted or not cleared, outputs of rows "
        "that were not asked for",
        "the report needs only one sequence, decoded once",
    ),
    (
        "embeddings of other ids, a column-major file, a head that is always tied, matrices "
        "transposed, the second-best token chosen, a bare NaN",
        "the engine writes no report, so no test can answer",
    ),
    (
        "one entry of a code book a step off, Q6_K with an offset of 31, the lowest byte of Q8_0, "
        "the rounding of activations",
        "the tested weights change by less than a quarter of the largest weight",
    ),
    (
        "F16 scales read as BF16, halves read as the other 16-bit type",
        "a value that is not finite makes every token NaN, so there is no report",
    ),
    (
        "texts of special tokens that become these tokens although nobody asked, or stay text "
        "although somebody did",
        "the right tokens depend on how the text is given, which the report shows",
    ),
    (
        "the end of a text cut off, a text that ends at a NUL, incomplete characters not written, "
        "a space written before a text",
        "the prompt ends in the letter that asks, has no NUL, and every token of a report is whole "
        "characters; a space before the report is ignored",
    ),
    (
        "races and rows beyond a tile",
        "they show only in some runs, and then in any test",
    ),
    (
        "a GELU by erf, scores of gemma3 divided by the root of n_embd / n_head, the variance of a "
        "layer norm divided by n - 1, a router in BF16",
        "they differ by less than the margin that honest engines need",
    ),
    (
        "the bias of keys",
        "without rotary positions it adds the same to every score, which a softmax does not see",
    ),
    (
        "a prompt of more than one batch in layers with a window, and cells of a window used again",
        "no test looks at forgotten tokens, and an engine may split a prompt as it likes",
    ),
    (
        "frequency factors, linear and YaRN scaling, soft caps, sinks, biases of heads apart, "
        "shared experts, latent attention, recurrent states, tokenizers of other kinds",
        "no acid model has them yet",
    ),
)
