"""Builds all weights of an acid model from its tokens, states and answers."""

import numpy as np

from lockstep.harness.acid.architectures.base import AcidArchitecture
from lockstep.harness.acid.measurements.base import (
    AcidPlace,
    Answer,
    Measurement,
    state_of,
    value_of,
)
from lockstep.harness.acid.report import END, Report
from lockstep.harness.acid.shape import Shape, eight_bits
from lockstep.harness.acid.vocabulary import (
    ASKED,
    BOS,
    ENDED,
    FULL,
    LAST,
    SHORT,
    START,
    AcidVocabulary,
)
from lockstep.harness.acid.weights import CONST, EDGE, EDGE_STATE, SMALL, TINY, AcidWeights

STATE = 3600.0  # logits by which the right answer of a state leads all other answers
SURE = 8.0


def weights_of(report: Report, arch: AcidArchitecture, shape: Shape) -> AcidWeights:
    lines, vocabulary = report.lines(), arch.vocabulary
    n_plain = len(vocabulary.tokens)
    w = arch.make_weights(shape, n_plain + len(lines))
    ids = {line: n_plain + i for i, line in enumerate(lines)}
    write_tokens(w, report, vocabulary, ids)
    for test in report.tests:
        order = (*report.prompted, *report.usual)
        test.build(w, AcidPlace(test, order, vocabulary))
    firsts = {name: 1.0 for name in (START, BOS) if name in w.at}
    w.sink([START, FULL, SHORT, ENDED, *map(state_of, report.tests)], firsts)
    write_answers(w, report, vocabulary, ids)
    w.finish()
    return w


def write_tokens(
    w: AcidWeights, report: Report, vocabulary: AcidVocabulary, ids: dict[str, int]
) -> None:
    """Write each token's embedding: the constant, and the state in which the token puts the
    model."""
    first = state_of(report.prompted[0]) if report.prompted else state_of(report.usual[0])
    w.embd[:] = 0
    for token in range(min(ids.values())):
        w.embed(token, START)
    for text, (state, size) in places_in(report, vocabulary).items():
        w.embed(vocabulary.tokens.index(text), state, size)
    for (short_token, second), state, after in (
        (report.full_start, FULL, first),
        (report.short_start, SHORT, state_of(report.usual[0])),
    ):
        w.embed(ids[short_token], state, w.shape.tiny, TINY)
        w.embed(ids[second], after)
    w.embed(ids[END], LAST)
    for test, answers in report.answers(1.0):
        for answer in answers:
            w.embed(ids[answer.text], report.next_state(test))
            if report.next_state(test) == EDGE_STATE:
                w.embd[ids[answer.text], w.coordinate(EDGE)] = 1.0


def places_in(report: Report, vocabulary: AcidVocabulary) -> dict[str, tuple[str, float]]:
    """Return the state and the size of each token that has its own state in this report's model."""
    cut = any(test.of_tokenizer for test in report.tests)
    found = vocabulary.places.items()
    return {text: place for text, place in found if cut or place[0] not in vocabulary.only_cut}


def write_answers(
    w: AcidWeights, report: Report, vocabulary: AcidVocabulary, ids: dict[str, int]
) -> None:
    for state, line in (
        (START, report.short_start[0]),
        (ASKED, report.full_start[0]),
        (FULL, report.full_start[1]),
        (SHORT, report.short_start[1]),
        (ENDED, END),
    ):
        # only this distinguishes short tokens, and values written to them are relatively large
        lead = SURE * STATE if state in (FULL, SHORT) else STATE
        w.head[ids[line], w.coordinate(state)] = lead / w.shape.unit
    for state, _ in places_in(report, vocabulary).values():  # a prompt may end with such a token
        if state != ASKED:
            w.head[ids[report.short_start[0]], w.coordinate(state)] = STATE / w.shape.unit
    w.head[vocabulary.eos, w.coordinate(LAST)] = STATE / w.shape.unit
    for test, answers in report.answers(SMALL * unit_at_the_end(w, report)):
        for answer in answers:
            write_answer(w, ids[answer.text], test, answer)


def unit_at_the_end(w: AcidWeights, report: Report) -> float:
    """Return the smallest size of the constant after the last norm. Right values make a token
    longer, so its normalised constant becomes smaller."""
    longest = max(sum((v * SMALL) ** 2 for v in test.right) for test in report.tests)
    return w.shape.unit / float(np.sqrt(1 + longest / 2))


def write_answer(w: AcidWeights, token: int, test: Measurement, answer: Answer) -> None:
    row, state = w.head[token], w.coordinate(state_of(test))
    for i, away in enumerate(answer.away):
        at = w.coordinate(value_of(test, i))
        row[at] = answer.gain * away
    offset = float((answer.away * answer.middle).sum()) * answer.gain * SMALL
    wanted = STATE / w.shape.unit - offset
    row[state] = eight_bits(wanted)
    # the part that eight bits cannot hold; without it, thresholds would move
    row[w.coordinate(CONST)] = wanted - row[state]
