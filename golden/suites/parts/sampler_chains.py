"""Chains of sampler vectors: common chains, and pairs of samplers whose order changes the
result."""

from collections.abc import Sequence

from lockstep.golden.suites.parts.sampler_cases import (
    TOLD,
    USUAL,
    SamplerSpec,
    Stage,
    stage,
)

DIST, GREEDY = stage("dist"), stage("greedy")
THIRDS = ((0.0, 0.25), (0.4, 0.6), (0.8, 1.0))
LOW_HEAT, TOP_P, TOP_K = stage("temp", t=0.6), stage("top_p", p=0.8), stage("top_k", k=8)
PENALTY = stage("penalties", penalty_repeat=1.5)
FLAT_BIAS = stage("logit_bias", biases=((3, 4.0), (5, -2.0)))


def five_stages(t: float, k: int, p: float) -> tuple[Stage, ...]:
    """Return a chain of temperature, top-k, top-p and one draw. The probabilities of the list
    before the draw are the softmax."""
    return (stage("temp", t=t), stage("top_k", k=k), stage("top_p", p=p), DIST)


def draws(
    name: str, chain: Sequence[Stage], kind: str = "random", n: int = USUAL
) -> list[SamplerSpec]:
    """Return cases of the chain with a low, a middle and a high draw."""
    return [
        SamplerSpec(
            id=f"{name}-{kind}-{n}-{i}", chain=tuple(chain), kind=kind, n=n, reach=reach, told=TOLD
        )
        for i, reach in enumerate(THIRDS)
    ]


def both_orders(name: str, a: Stage, b: Stage) -> list[SamplerSpec]:
    """Return cases of the two samplers in both orders, on the same kind of row."""
    return [
        SamplerSpec(id=f"{name}-{i}", chain=(*pair, GREEDY), told=TOLD)
        for i, pair in enumerate(((a, b), (b, a)))
    ]


CHAINS: dict[str, list[SamplerSpec]] = {
    "five-stages": [
        *draws("usual", five_stages(0.8, 10, 0.9)),
        *draws("hot", five_stages(1.5, 10, 0.9)),
        *draws("usual", five_stages(0.8, 10, 0.9), "masked"),
        *draws("usual", five_stages(0.8, 10, 0.9), "peaked"),
        *draws("usual", five_stages(0.8, 40, 0.95), n=200),
        *draws("no-temperature", five_stages(0.0, 10, 0.9))[:1],
        *draws("no-top-k", five_stages(0.8, 0, 0.9)),
        *draws("k-above-all", five_stages(0.8, USUAL + 1, 0.9))[:1],
        *draws("no-top-p", five_stages(0.8, 10, 1.0)),
        *draws("smallest-top-p", five_stages(0.8, 10, 0.0))[:1],
        *draws("one", five_stages(0.8, 10, 0.9), n=1)[:1],
    ],
    "chains": [
        *both_orders("temp-top-p", LOW_HEAT, TOP_P),
        *both_orders("top-k-top-p", TOP_K, TOP_P),
        *both_orders("penalties-temp", PENALTY, LOW_HEAT),
        *both_orders("min-p-temp", stage("min_p", p=0.2), stage("temp", t=1.75)),
        *both_orders("top-k-bias", stage("top_k", k=12), FLAT_BIAS),
        *both_orders("typical-temp", stage("typical", p=0.6), LOW_HEAT),
        *both_orders("top-k-sigma", TOP_K, stage("top_n_sigma", n=1.0)),
        *both_orders("xtc-top-p", stage("xtc", p=1.0, t=0.1), TOP_P),
        *draws(
            "all",
            (
                stage("penalties", penalty_repeat=1.1, penalty_freq=0.25),
                stage("dry"),
                stage("top_n_sigma", n=2.0),
                stage("top_k", k=12),
                stage("typical", p=0.95),
                stage("top_p", p=0.9),
                stage("min_p", p=0.05),
                stage("temp", t=0.8),
                DIST,
            ),
            n=60,
        ),
        *draws("top-p-alone", (stage("temp", t=0.7), TOP_P, DIST)),
        *draws("min-p-alone", (stage("min_p", p=0.1), stage("temp", t=1.5), DIST)),
        *draws("greedy-behind-top-k", (PENALTY, TOP_K, GREEDY))[:1],
        *draws("mirostat-behind-temp", (LOW_HEAT, stage("mirostat_v2", tau=1.5))),
    ],
}
