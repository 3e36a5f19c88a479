"""Runs a schedule of decode calls and cache operations on llama.cpp, with everything that shows
their effect.

With `LLAMA_BATCH_DEBUG` llama.cpp prints each ubatch that it forms (2, because not all versions
name the tokens at 1). With `LLAMA_KV_CACHE_DEBUG` it prints the cells that it looks at before it
places an ubatch. llama.cpp reads both variables when it makes a context. Versions with llama_sbatch
have neither variable. For them the ubatches are read from the graphs, and the cells are unknown.
"""

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters import has_sbatch
from lockstep.harness.adapters.llama_cpp.model import LlamaContext, LlamaModel
from lockstep.harness.adapters.llama_cpp.ubatches import Ubatches
from lockstep.harness.records import Settings

DEBUG = {"LLAMA_BATCH_DEBUG": "2", "LLAMA_KV_CACHE_DEBUG": "3"}
POOLING_LAST = 3  # a value of llama_pooling_type
Answer = dict[str, Any]
Row = Sequence[Any]  # token, position, sequences, output

FIELD = re.compile(r"ubatch_print:   (equal_seqs|n_seqs|n_tokens) +=\s+(\d+)")
TOKEN = re.compile(
    r"ubatch_print: +\d+: id = *(-?\d+) \(.*\), pos = *(-?\d+), n_seq_id = *\d+, "
    r"seq_id = \[([\d.]*)\], output = (\d+)\s*$",
    re.DOTALL,
)
STREAM = re.compile(
    r"find_slot: stream\[(\d+)\], n = *(\d+), used = *(\d+), head = *(\d+), size = *(\d+), "
    r"n_swa = *(\d+)"
)


class Log:
    """The ubatches and cells of one call, read from debug lines of the log."""

    def __init__(self) -> None:
        self.ubatches: list[list[Any]] = []  # [equal, n_seqs, rows]
        self.slots: list[list[Any]] = []  # [n_swa, stream, n, used, head, owners, positions]
        self.n_tokens: list[int] = []
        self.reading = False

    def read_ubatches(self) -> list[list[Any]] | None:
        """Return the ubatches; None if the log of this version does not name every token."""
        read = [len(rows) for _, _, rows in self.ubatches]
        return self.ubatches if read == self.n_tokens else None

    def __call__(self, line: str) -> None:
        if "added ubatch to split" in line:
            self.ubatches.append([False, 0, []])
            self.reading = True
        elif "input batch info" in line:
            self.reading = False
        elif line.startswith("ubatch_print:"):
            if self.reading:
                self.ubatch_line(line)
        elif found := STREAM.match(line):
            stream, n, used, head, _, n_swa = map(int, found.groups())
            self.slots.append([n_swa, stream, n, used, head, "", ""])
        elif line.startswith("\n") and self.slots:
            self.cells(line)

    def ubatch_line(self, line: str) -> None:
        if found := FIELD.match(line):
            value = int(found[2])
            if found[1] == "n_tokens":
                self.n_tokens.append(value)
            elif found[1] == "n_seqs":
                self.ubatches[-1][1] = value
            else:
                self.ubatches[-1][0] = bool(value)
        elif found := TOKEN.match(line):
            seqs = [s for s, mark in enumerate(found[3]) if mark != "."]
            self.ubatches[-1][2].append([int(found[1]), int(found[2]), seqs, bool(int(found[4]))])

    def cells(self, text: str) -> None:
        """Keep the owners of the cells at the first line, and their positions at the second. Cells
        from `n` on are empty."""
        slot = self.slots[-1]
        n = slot[2]
        if not slot[5]:
            slot[5] = re.sub(r"[\s*]", "", text)[:n] or "-"
        else:
            slot[6] = " ".join(text.replace("*", " ").split()[:n]) or "-"


class ScheduleRun:
    """The context of a schedule, from its first step to its last."""

    def __init__(self, model: LlamaModel, settings: Settings, plan: Mapping[str, Any]) -> None:
        self.model, self.lib, self.n_seq = model, model.lib, int(plan["n_seq"])
        os.environ.update(DEBUG)
        self.pooled = plan.get("sbatch") == "seq"
        self.graphs = Ubatches(self.lib.ggml) if has_sbatch(self.lib.number) else None
        check_plan(plan, self.lib.version, old=self.graphs is not None)
        fields = {"n_ctx": plan["n_ctx"], "n_batch": plan["n_ctx"], "n_ubatch": plan["n_ubatch"]}
        fields |= {"n_seq_max": self.n_seq, "kv_unified": plan["unified"], "swa_full": False}
        fields |= {"embeddings": True, "pooling_type": POOLING_LAST} if self.pooled else {}
        self.context = LlamaContext(model, settings, traced=self.graphs is not None, fields=fields)
        self.context.observer = self.graphs
        self.pointer = self.context.pointer
        self.memory = self.lib.llama.llama_get_memory(self.pointer)
        self.saved: list[ctypes.Array[ctypes.c_uint8]] = []

    def close(self) -> None:
        self.context.close()

    def step(self, step: Sequence[Any]) -> Answer:
        log = Log()
        self.lib.listener = log
        if self.graphs is not None:
            self.graphs.begin()
        try:
            logits, order = None, None
            if step[0] == "decode":
                code, logits, order = self.decode(step[1])
            else:
                code = self.operation(step)
        finally:
            self.lib.listener = None
        return {
            "code": code,
            "pos": [self.span(seq) for seq in range(self.n_seq)],
            "ubatches": log.read_ubatches() if self.graphs is None else self.graphs.as_answer(),
            "slots": log.slots if self.graphs is None else None,
            "order": order,
            "logits": logits,
        }

    def span(self, seq: int) -> list[int | None]:
        """Return the smallest and largest position. Older versions report only the largest
        position, and their 0 may mean that the sequence is empty."""
        llama = self.lib.llama
        last = llama.llama_memory_seq_pos_max(self.memory, seq)
        if self.graphs is not None:
            return [None, last or None]
        return [llama.llama_memory_seq_pos_min(self.memory, seq), last]

    def decode(
        self, rows: Sequence[Row]
    ) -> tuple[int, NDArray[np.float32] | None, list[int] | None]:
        """Return the code, the logits of the outputs, and the order in which the outputs were
        computed."""
        llama = self.lib.llama
        held = llama.llama_batch_init(max(len(rows), 1), 0, max(self.n_seq, 8))
        try:
            fill(held, rows)
            code = self.context.call(llama.llama_decode, held)
        finally:
            llama.llama_batch_free(held)
        if code != 0 or self.pooled:
            return code, None, None
        outputs = [at for at, row in enumerate(rows) if row[3]]
        logits = self.logits(outputs)
        if self.graphs is None:
            return code, logits, None
        return code, logits, self.graphs.order(dict(zip(outputs, logits, strict=True)))

    def logits(self, outputs: Sequence[int]) -> NDArray[np.float32]:
        out = np.empty((len(outputs), self.model.n_vocab), np.float32)
        for row, at in enumerate(outputs):
            pointer = self.lib.llama.llama_get_logits_ith(self.pointer, at)
            if not pointer:
                raise RuntimeError(f"llama.cpp holds no logits for token {at} of the batch")
            out[row] = np.ctypeslib.as_array(pointer, (self.model.n_vocab,))
        return out

    def operation(self, step: Sequence[Any]) -> int:
        """Run a cache operation, and return the result of the call; 0 if it has no result."""
        llama, memory = self.lib.llama, self.memory
        match list(step):
            case ["rm", seq, p0, p1]:
                return int(llama.llama_memory_seq_rm(memory, seq, p0, p1))
            case ["cp", source, to, p0, p1]:
                llama.llama_memory_seq_cp(memory, source, to, p0, p1)
            case ["keep", seq]:
                llama.llama_memory_seq_keep(memory, seq)
            case ["add", seq, p0, p1, delta]:
                llama.llama_memory_seq_add(memory, seq, p0, p1, delta)
            case ["div", seq, p0, p1, d]:
                llama.llama_memory_seq_div(memory, seq, p0, p1, d)
            case ["clear"]:
                llama.llama_memory_clear(memory, True)
            case ["save", seq]:
                return self.save(seq)
            case ["load", seq, k]:
                return self.load(seq, self.saved[k])
            case _:
                raise EngineError(f"{step!r:.80} is not a step of a schedule")
        return 0

    def save(self, seq: int) -> int:
        llama = self.lib.llama
        if seq < 0:
            size = llama.llama_state_get_size(self.pointer)
        else:
            size = llama.llama_state_seq_get_size(self.pointer, seq)
        held = (ctypes.c_uint8 * size)()
        if seq < 0:
            written = llama.llama_state_get_data(self.pointer, held, size)
        else:
            written = llama.llama_state_seq_get_data(self.pointer, held, size, seq)
        self.saved.append(held)
        return int(written == size)

    def load(self, seq: int, held: Any) -> int:
        llama = self.lib.llama
        if seq < 0:
            return int(llama.llama_state_set_data(self.pointer, held, len(held)) > 0)
        return int(llama.llama_state_seq_set_data(self.pointer, held, len(held), seq) > 0)


def check_plan(plan: Mapping[str, Any], version: str, *, old: bool) -> None:
    if plan.get("sbatch") and not old:
        raise Unsupported(f"{version} has no llama_sbatch")
    if old and plan["n_seq"] > 1 and not plan["unified"]:
        raise Unsupported(f"{version} has one stream of cells for all sequences")


def fill(held: Any, rows: Sequence[Row]) -> None:
    held.n_tokens = len(rows)
    for i, (token, pos, seqs, output) in enumerate(rows):
        held.token[i], held.pos[i], held.logits[i] = token, pos, int(output)
        held.n_seq_id[i] = len(seqs)
        for j, seq in enumerate(seqs):
            held.seq_id[i][j] = seq


def run_schedule(model: LlamaModel, settings: Settings, plan: Mapping[str, Any]) -> list[Answer]:
    run = ScheduleRun(model, settings, plan)
    try:
        return [run.step(step) for step in plan["steps"]]
    finally:
        run.close()
