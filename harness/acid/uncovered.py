"""Mistakes that no acid test finds, with reasons: not visible in text, or not implemented yet."""

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
        "one entry of a code book a step off, Q6_K with an offset of 31, the lowest byte of Q8_0, "
        "the rounding of activations",
        "the weights that are read change by less than a quarter of the largest",
    ),
    (
        "scales read as BF16 that are F16, halves read as the other kind",
        "what is not finite makes every token NaN: there is no report",
    ),
    (
        "texts of special tokens taken for these tokens where they are not asked for, or the other "
        "way round",
        "what is right depends on how a text is given; the report says which it was",
    ),
    (
        "the end of a text cut off, a text that ends at a NUL, incomplete characters not written, "
        "a space written before a text",
        "the prompt ends in the letter that asks, has no NUL, and every token of a report is whole "
        "characters; a space before it is none of the report",
    ),
    (
        "races and rows beyond a tile",
        "they show now and then, in whatever test is running",
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
        "what was forgotten is not looked at; how a prompt is split is the engine's choice",
    ),
    (
        "frequency factors, linear and YaRN scaling, soft caps, sinks, biases of heads apart, "
        "shared experts, latent attention, recurrent states, tokenizers of other kinds",
        "no acid model of theirs is written yet",
    ),
)
