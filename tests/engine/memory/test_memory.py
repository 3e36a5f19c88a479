"""Memories without numbers: the effects of operations, the places of tokens, and refusals without
effects."""

from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.hybrid import Hybrid
from lockstep.engine.memory.recurrent import Recurrent
from lockstep.engine.memory.schedule import Schedule
from lockstep.engine.memory.window import Window

SIZE = 8


def attention(**changes: Any) -> Attention:
    return Attention(**{"size": SIZE, "n_seq": 3, "unified": True, **changes})


def run(memory: Memory, *steps: Sequence[Any], n_ubatch: int = 4) -> list[dict[str, Any]]:
    schedule = Schedule(memory, None, 64, n_ubatch)
    return [schedule.step(step) for step in steps]


def text(seq: int, start: int, n: int) -> list[Any]:
    return ["decode", [[1, start + i, [seq], False] for i in range(n)]]


def cells(memory: Attention, stream: int = 0) -> tuple[str, str]:
    return memory.streams[stream].look()[3:]


MEMORIES: list[Memory] = [
    attention(),
    attention(unified=False),
    Window(size=256, n_seq=3, unified=True, window=4, n_ubatch=4),
    Recurrent(3),
    Hybrid(size=SIZE, n_seq=3, unified=True),
    Hybrid(size=SIZE, n_seq=3, unified=False),
]


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: type(memory).__name__)
def test_every_memory_copies_and_removes_whole_sequences(memory: Memory) -> None:
    steps = [text(0, 0, 3), text(1, 0, 2), ["cp", 0, 2, -1, -1], ["rm", 0, -1, -1]]
    last = run(memory, ["clear"], *steps)[-1]
    assert (last["code"], [span[1] for span in last["pos"]]) == (1, [-1, 1, 2])
    kept = run(memory, ["keep", 1])[-1]["pos"]
    assert [span[1] for span in kept] == [-1, 1, -1]
    assert run(memory, ["rm", -1, -1, -1])[-1]["pos"] == [[-1, -1]] * 3


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: type(memory).__name__)
def test_restored_sequence_equals_the_saved_sequence(memory: Memory) -> None:
    steps = [["clear"], text(0, 0, 3), ["save", 0], ["save", -1], ["save", 2], text(0, 3, 1)]
    answers = run(memory, *steps, ["load", 1, 0], ["load", 0, 2], ["load", -1, 1])
    before, copied, emptied, whole = (answers[i]["pos"] for i in (4, 6, 7, 8))
    assert copied[1] == before[0]
    assert emptied[0] == [-1, -1]
    assert whole == before


def test_shared_cells_are_freed_by_their_last_sequence() -> None:
    memory = attention()
    run(memory, text(0, 0, 3), ["cp", 0, 1, -1, 2])
    assert cells(memory) == ("MM0", "0 1 2")
    run(memory, ["rm", 0, -1, -1])
    assert cells(memory) == ("11", "0 1")


def test_tokens_are_placed_from_the_head_on_and_wrap_around() -> None:
    memory = attention()
    run(memory, text(0, 0, 4), text(1, 0, 4), ["rm", 0, 1, 3], text(2, 0, 2))
    assert cells(memory) == ("02201111", "0 0 1 3 0 1 2 3")


def test_a_batch_that_does_not_fit_changes_nothing() -> None:
    memory = attention()
    *_, before, refused = run(memory, text(0, 0, 4), ["keep", 0], text(1, 0, 5))
    assert (refused["code"], refused["pos"]) == (1, before["pos"])
    assert len(refused["ubatches"]) == 2
    assert cells(memory) == ("0000", "0 1 2 3")


def test_shifted_positions_below_zero_are_removed() -> None:
    memory = attention()
    run(memory, text(0, 0, 4), ["add", 0, 2, -1, 5])
    assert cells(memory) == ("0000", "0 1 7 8")
    run(memory, ["div", 0, -1, -1, 2], ["add", 0, -1, -1, -1])
    assert cells(memory) == ("..00", ". . 2 3")
    assert memory.streams[0].shift[2:4] == [0, 0]  # the positions are as before


def test_cell_outside_the_window_is_reused_and_drops_older_cells() -> None:
    memory = attention(window=3)
    run(memory, text(0, 0, 8))
    run(memory, text(0, 8, 1))
    # position 8 hides 0 to 5; the first free cell is that of position 0
    assert cells(memory) == ("00000000", "8 1 2 3 4 5 6 7")
    run(memory, text(1, 0, 2), n_ubatch=2)
    assert memory.pos_min(0) == 3
    assert not memory.purges_ahead


def test_shared_cell_is_never_taken() -> None:
    memory = attention(window=3)
    answers = run(memory, text(0, 0, 8), ["cp", 0, 1, -1, -1], text(0, 8, 1))
    assert answers[-1]["code"] == 1


def test_purge_visible_to_an_earlier_ubatch_is_recorded() -> None:
    near = Window(size=256, n_seq=2, unified=True, window=6, n_ubatch=5)
    steps = [text(0, 0, 1), text(1, 0, 5), text(0, 1, 1), ["rm", 1, -1, -1], text(0, 2, 6)]
    run(near, *steps, n_ubatch=5)
    assert near.near.purges_ahead


def test_streams_are_copied_whole() -> None:
    memory = attention(unified=False)
    run(memory, text(0, 0, 3), text(1, 0, 1), ["cp", 0, 1, -1, -1])
    assert cells(memory, 1) == ("111", "0 1 2")


def test_part_of_a_state_cannot_be_removed() -> None:
    memory = Recurrent(3)
    answers = run(memory, text(0, 0, 4), ["rm", 0, 2, -1], ["rm", 0, -1, 2], ["rm", 0, 4, -1])
    assert [answer["code"] for answer in answers[1:]] == [0, 0, 1]
    assert answers[-1]["pos"][0] == [3, 3]


def test_shared_state_splits_when_one_owner_continues() -> None:
    memory = Recurrent(3)
    last = run(memory, text(0, 0, 2), ["cp", 0, 1, -1, -1], text(0, 2, 2))[-1]
    assert last["pos"][:2] == [[3, 3], [1, 1]]
    shared = ["decode", [[1, 0, [0, 1], True]]]
    assert run(Recurrent(3), shared)[-1]["code"] == 1


def test_batch_against_the_rules_forms_no_ubatch() -> None:
    answer = run(attention(), text(0, 0, 2), text(0, 4, 1))[-1]
    assert (answer["code"], answer["ubatches"], answer["slots"]) == (-1, [], [])


def test_hybrid_memory_shares_tokens_but_not_states() -> None:
    shared = ["decode", [[1, 0, [0, 1], False], [2, 1, [0, 1], True]]]
    memory = Hybrid(size=SIZE, n_seq=2, unified=True)
    last = run(memory, shared, text(0, 2, 1))[-1]
    assert last["pos"] == [[2, 2], [1, 1]]
    assert cells(memory.attention) == ("MM0", "0 1 2")
    assert run(Hybrid(size=SIZE, n_seq=2, unified=False), shared)[-1]["code"] == 1


def test_hybrid_memory_is_unchanged_by_partial_removal_or_a_failed_batch() -> None:
    memory = Hybrid(size=SIZE, n_seq=2, unified=True)
    steps = [text(0, 0, 4), ["save", 0], ["rm", 0, 2, -1], text(1, 0, 4), ["load", 1, 0]]
    fuller = [["rm", 1, -1, -1], text(0, 4, 2), text(1, 0, 2), ["load", 1, 0]]
    answers = run(memory, *steps, *fuller, n_ubatch=8)
    refused, restored, full = answers[2], answers[4], answers[-1]
    assert (refused["code"], refused["pos"][0]) == (0, [3, 3])
    assert (restored["code"], restored["pos"]) == (1, [[3, 3], [3, 3]])
    assert (full["code"], full["pos"]) == (0, [[5, 5], [-1, -1]])
