"""The answers that an engine offers, and whether they suffice for probe models."""

from collections.abc import Collection, Sequence

from lockstep.harness.context.suite import Context
from lockstep.harness.dumps.dump import folder_of
from lockstep.harness.http.session import is_address
from lockstep.harness.records import EngineInfo

# tensors between layers or at the end of half a layer, after all of its products
BETWEEN_LAYERS = (
    *("embd", "inp_embd", "inp_norm", "attn_out", "ffn_inp", "ffn_out", "l_out"),
    *("result_norm", "result_output", "result_embd_pooled"),
)
ENOUGH = ("logits", "logprobs", "greedy")  # levels of harness.protocol, any of which suffices


def shows_no_tensors(info: EngineInfo) -> bool:
    silent = info.shows == () or (info.levels is not None and "trace" not in info.levels)
    return silent and not (info.computes_nodes or info.shows_nodes)


def shows_ends_alone(info: EngineInfo) -> bool:
    """Return True if the engine shows no tensors within a layer, so that no single product can be
    judged."""
    alone = info.shows is not None and not {*info.shows} - {*BETWEEN_LAYERS}
    return alone and not info.computes_nodes


def embeds(context: Context) -> bool:
    """Return True if the engine is to be asked for embeddings."""
    levels, facts = context.subject_info.levels, context.facts
    if facts.has_logits or facts.not_ours:
        return levels is not None and "embed" in levels and not set(levels).intersection(ENOUGH)
    return levels is None or "embed" in levels


def why_not_asked(
    engine: str, levels: Collection[str] | None, enough: Sequence[str] = ENOUGH
) -> str:
    """Return why an engine cannot be asked about probe models; "" if it can. enough: any one of
    these levels suffices."""
    if folder_of(engine) is not None or is_address(engine):
        return (
            f"{engine} serves one model and cannot open others (serve:COMMAND starts a "
            "server for each)"
        )
    if levels is not None and not set(levels).intersection(enough):
        return f"{engine} offers none of {', '.join(enough)}, and probe models need one of them"
    return ""
