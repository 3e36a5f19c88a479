"""A report with everything that a page can show, and a parser of pages."""

from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from lockstep.harness.records import EXACT, EngineInfo
from lockstep.harness.report.nodes import NodeRow, node_columns

VOID = {"meta", "br", "path", "link", "img", "input"}
SCHEDULE = {
    "n_ctx": 256,
    "n_ubatch": 2,
    "n_seq": 2,
    "unified": True,
    "steps": [["decode", [[1, 0, [0], False], [2, 1, [0, 1], True]]], ["rm", 0, 0, -1]],
}
ANSWER = {
    "code": 0,
    "pos": [[0, 1], [-1, -1]],
    "ubatches": [[True, 1, [[1, 0, [0], False], [2, None, None, True]]]],
    "slots": [[0, 0, 3, 2, 1, "0.M", "0 . 1"]],
    "order": None,
}


def rich_rows(text: Callable[[str], str] = lambda usual: usual) -> list[dict[str, Any]]:
    """Return the rows of a run with every kind of figure. text: replaces each text of a model, a
    token or an engine."""
    details = [*all_details(text)]
    rows = [verdict(text, i, *each) for i, each in enumerate(details)]
    engine = EngineInfo(engine=text("reference"), version=text("1"), settings=EXACT)
    header = {
        "kind": "header",
        "format": 1,
        "command": text("lockstep check m.gguf"),
        "started": "2026-11-20T10:00:00+00:00",
        "seed": 0,
        "models": [{"case": text("m.gguf"), "sha256": "0" * 64, "bytes": 7, "role": "both"}],
        "engines": [asdict(engine) | {"build": text("AVX2 = 1")}],
        "versions": {"python": text("3.11")},
    }
    counts = {s: sum(r["status"] == s for r in rows) for s in {r["status"] for r in rows}}
    footer = {"kind": "footer", "exit_code": 1, "seconds": 1.5, "verdicts": len(rows)}
    return [header, *rows, {**footer, "counts": counts}]


def verdict(
    text: Callable[[str], str], number: int, suite: str, status: str, detail: dict[str, Any]
) -> dict[str, Any]:
    return {
        "kind": "verdict",
        "suite": suite,
        "case": text("m.gguf"),
        "status": status,
        "summary": text("what was compared"),
        "detail": detail,
        "key": f"{suite}/{number}",
        "repro": text("lockstep check m.gguf"),
        "about": "both",
    }


def all_details(text: Callable[[str], str]) -> Any:
    yield "trace", "diverged", wrong_op(text)
    yield "trace", "agreed", {"by_node": node_columns(nodes(text))}
    yield "shadow", "agreed", {"op": text("ADD"), "by_node": node_columns(nodes(text))}
    yield "logits", "diverged", logits(text)
    yield "logits", "agreed", logits(text)
    yield "tokens", "diverged", tokens(text)
    yield "dequant", "diverged", block(text)
    yield (
        "fuzz-batch",
        "diverged",
        {"schedule": SCHEDULE, "step": 0, "symptom": text("ubatches")}
        | {
            "expected": ANSWER,
            "actual": ANSWER,
        },
    )
    yield (
        "fuzz-gguf",
        "excused",
        {"file": "47475546", "symptom": text("refuses")}
        | {
            "stage": text("llama.cpp file"),
            "answers": {text("reference"): text("accepted")},
            "known": text("known-id"),
        },
    )
    yield "decode", "crashed", {"log": [text("a line")]}
    yield "text", "internal", {"traceback": text("Traceback")}


def wrong_op(text: Callable[[str], str]) -> dict[str, Any]:
    place = {"step": 0, "layer": 1, "site": text("Qcur"), "op": text("MUL_MAT")}
    errors = {"err_in": 1e-7, "err_out": 0.2, "err_local": 1.1, "gain": "inf"}
    worst = {"index": [27, 3], "expected": 0.5, "actual": "nan", "allowed": 3e-6}
    return place | errors | worst | {"reason": text("64 products"), "rest": text("the rest agrees")}


def nodes(text: Callable[[str], str]) -> list[NodeRow]:
    usual: dict[str, Any] = {"step": 0, "op": text("MUL_MAT"), "reason": text("64 products")}
    return [
        NodeRow(**usual, order=0, layer=0, name=text("norm"), share=0.2, error=1e-7, worst=(0, 3)),
        NodeRow(**usual, order=1, layer=1, name=text("Qcur"), share=9.0, error=1.0, wrong=True),
        NodeRow(**usual, order=2, layer=None, name=text("result_output"), share=0.0, error=0.0),
    ]


def logits(text: Callable[[str], str]) -> dict[str, Any]:
    other = {"position": 1, "expected": 5, "actual": 7}
    other |= {"expected_text": text("cat"), "actual_text": text("dog")}
    figures = {"every": 1, "error": [0.0, 0.2, "inf"], "margin": [0.5, 0.1, 0.3]}
    figures |= {"other_choices": 1, "first_other": other}
    return {"allowed_relative": 1e-5, "reason": text("two honest runs"), "by_position": figures}


def tokens(text: Callable[[str], str]) -> dict[str, Any]:
    sides = {
        "start": 0,
        "expected": {"ids": [1, 2, 3], "pieces": [text("a"), text("b"), None], "count": 3},
        "actual": {"ids": [1, 9], "pieces": [text("a"), text("z")], "count": 2},
    }
    return {
        "way": "encode",
        "flags": {"add_special": True},
        "input": text("'Once upon a time'"),
        "total": 2,
        "differences": [{"text": text("one")}, {"text": text("two")}],
        "sides": sides,
    }


def block(text: Callable[[str], str]) -> dict[str, Any]:
    one = {"type": "Q4_0", "hex": "003c" + "80" * 16, "weight": 3, "values": [0.0] * 32}
    other = {**one, "values": [1.0] * 32}
    place = {"row": 23, "column": 3}
    return {
        "tensor": text("blk.0.attn_q.weight"),
        **place,
        "decoded": {"oracle": one, "subject": other},
    }


class Page(HTMLParser):
    """A parsed page: its elements in order, their texts, and unclosed elements."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    @classmethod
    def at(cls, path: Path) -> "Page":
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
