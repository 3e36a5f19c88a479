"""Samplers of ik_llama.cpp: functions on an array of candidates, which the caller applies in any
order.

This program writes a draw into the library's generator (std::mt19937 of libstdc++), at the
beginning of the library's struct llama_sampling. Therefore most samplers need no model; only
grammars and dry need the model's vocabulary.
"""

import base64
import ctypes

import ik_llama_cpp._ctypes_api as api
import numpy as np
from answering import Refused, Unsupported
from ik_llama_cpp._internals import IkModel

ROW = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])  # layout of llama_token_data
SAMPLING = np.dtype(
    [("state", "<u8", 624), ("place", "<u8"), ("n_vocab", "<i4"), ("timings", "V20")]
)
ADAPTIVE_GENERATOR = 16  # offset of the generator in struct llama_sampler_adaptive_p
LARGEST = 2**32 - 1  # largest number of the generator
I32, U64, FLOAT, POINTER = ctypes.c_int32, ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p


def call(name, *arguments, result=None):
    """Call a function of llama.h."""
    function = api._lib[f"llama_{name}"]
    function.restype = result
    return function(*arguments)


def call_inner(name, rest, *arguments, result=None):
    """Call a function on struct llama_sampling. The library exports this function only under its
    C++ name."""
    plain = f"llama_sample_{name}_impl"
    function = api._lib[f"_Z{len(plain)}{plain}P14llama_samplingP22llama_token_data_array{rest}"]
    function.restype = result
    return function(*arguments)


def generator_word(share):
    """Return the word of the generator's state that makes the generator return this share of its
    largest number."""
    y = 0 if np.isnan(share) else min(round(share * LARGEST), LARGEST)
    y ^= y >> 18
    y ^= y << 15 & 0xEFC60000
    x = y
    for _ in range(5):
        x = y ^ x << 7 & 0x9D2C5680
    y = x
    for _ in range(3):
        x = y ^ x >> 11
    return x


class Stage:
    """A sampler with its parameters and state."""

    shows_old_p = False  # True: the list's p are those before the stage

    def __init__(self, said, n_vocab, vocabulary):
        self.numbers = {name: value for name, value in said.items() if name != "sampler"}
        self.run = getattr(self, f"run_{said['sampler']}", None)
        if self.run is None:
            raise Unsupported(f"no sampler {said['sampler']}")
        self.sampling = np.zeros(1, SAMPLING)
        self.sampling["n_vocab"] = n_vocab
        self.own = POINTER(self.sampling.ctypes.data)
        self.seen, self.mu = [], FLOAT(2 * said.get("tau", 0.0))
        self.held, self.taker, self.ending = None, None, None
        if make := getattr(self, f"make_{said['sampler']}", None):
            make(n_vocab, vocabulary, **self.numbers)

    def hold(self, made, taker, ending):
        """Store an object of the library, the function with which the object accepts a token, and
        the function that frees the object."""
        self.held, self.taker, self.ending = POINTER(made), taker, ending
        if not made:
            raise Refused("the library refuses these numbers or texts")

    def close(self):
        if self.held and self.ending:
            self.ending(self.held)

    def accept(self, token):
        self.seen.append(token)
        if self.held and self.taker:
            self.taker(self.held, I32(token))

    def apply(self, array, draw):
        """Return the selected token, or None."""
        self.sampling["state"][0, 0], self.sampling["place"] = generator_word(draw), 0
        return self.run(ctypes.byref(array), **self.numbers)

    # --- cuts -------------------------------------------------------------------------------------

    def run_top_k(self, array, k):
        call("sample_top_k", None, array, I32(k), U64(1))

    def run_top_p(self, array, p, min_keep):
        call("sample_top_p", None, array, FLOAT(p), U64(min_keep))

    def run_min_p(self, array, p, min_keep):
        call("sample_min_p", None, array, FLOAT(p), U64(min_keep))

    def run_typical(self, array, p, min_keep):
        call("sample_typical", None, array, FLOAT(p), U64(min_keep))

    def run_top_n_sigma(self, array, n):
        call("sample_top_n_sigma", None, array, FLOAT(n))

    def run_xtc(self, array, p, t, min_keep, seed):
        call_inner("xtc", "ffm", self.own, array, FLOAT(p), FLOAT(t), U64(min_keep))

    # --- logits -----------------------------------------------------------------------------------

    def run_temp(self, array, t):
        """Divide by t if t > 0, and choose greedily otherwise, as the library's programs do."""
        if t > 0:
            call("sample_temp", None, array, FLOAT(t))
        else:
            token, held = self.run_greedy(array), array._obj
            held.data[0] = next(row for row in held.data[: held.size] if row.id == token)
            held.size = 1

    def run_temp_ext(self, array, t, delta, exponent):
        """Call `entropy` if there is a range, else `temp`, as the library's programs do."""
        if delta <= 0:
            return self.run_temp(array, t)
        ends = FLOAT(max(0.0, t - delta)), FLOAT(t + delta)
        return call("sample_entropy", None, array, *ends, FLOAT(exponent))

    def run_penalties(self, array, penalty_last_n, penalty_repeat, penalty_freq, penalty_present):
        last = self.seen[-penalty_last_n:] if penalty_last_n > 0 else []
        numbers = FLOAT(penalty_repeat), FLOAT(penalty_freq), FLOAT(penalty_present)
        tokens = (I32 * len(last))(*last)
        call("sample_repetition_penalties", None, array, tokens, U64(len(last)), *numbers)

    def make_dry(self, n_vocab, vocabulary, seq_breakers, **numbers):
        texts = [base64.b64decode(text) for text in seq_breakers]
        order = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n")
        given = [kind(numbers[n]) for kind, n in zip((FLOAT, FLOAT, I32, I32), order, strict=True)]
        array = (ctypes.c_char_p * len(texts))(*texts)
        arguments = vocabulary(), *given, array, U64(len(texts))
        self.hold(
            call("sampler_init_dry", *arguments, result=POINTER),
            lambda held, token: call("sampler_dry_accept", held, token),
            lambda held: call("sampler_dry_free", held),
        )

    def run_dry(self, array, **_):
        call("sample_dry", None, self.held, array)

    # --- choices ----------------------------------------------------------------------------------

    def run_greedy(self, array):
        return call("sample_token_greedy", None, array, result=I32)

    def run_dist(self, array, seed):
        return call_inner("token", "", self.own, array, result=I32)

    def run_mirostat(self, array, seed, tau, eta, m):
        numbers = FLOAT(tau), FLOAT(eta), I32(m), ctypes.byref(self.mu)
        return call_inner("token_mirostat", "ffiPf", self.own, array, *numbers, result=I32)

    def run_mirostat_v2(self, array, seed, tau, eta):
        numbers = FLOAT(tau), FLOAT(eta), ctypes.byref(self.mu)
        return call_inner("token_mirostat_v2", "ffPf", self.own, array, *numbers, result=I32)

    def make_adaptive_p(self, n_vocab, vocabulary, target, decay, seed):
        """Make a sampler that remembers the chosen token's probability in the sampler's input list,
        as llama.cpp's sampler does. The library has no C function that frees this sampler."""
        numbers = I32(n_vocab), FLOAT(target), FLOAT(decay), ctypes.c_bool(True), I32(seed)
        self.hold(call("init_adaptive_p", *numbers, result=POINTER), None, None)
        self.shows_old_p = True

    def run_adaptive_p(self, array, target, decay, seed):
        if target < 0:
            return self.run_dist(array, seed)
        place = self.held.value + ADAPTIVE_GENERATOR
        ctypes.memmove(place, self.sampling.ctypes.data, SAMPLING.fields["n_vocab"][1])
        name = "P24llama_sampler_adaptive_p"
        call_inner("adaptive_p", name, self.own, array, self.held)
        return call_inner("token_adaptive_p", name, self.own, array, self.held, result=I32)

    # --- grammars ---------------------------------------------------------------------------------

    def make_grammar(self, n_vocab, vocabulary, grammar_str, grammar_root, **triggers):
        kind, texts = "grammar", ()
        for name in ("words", "patterns"):
            if f"trigger_{name}" in triggers:
                kind = "grammar_lazy" if name == "words" else "grammar_lazy_patterns"
                texts = [base64.b64decode(text) for text in triggers[f"trigger_{name}"]]
        tokens = triggers.get("trigger_tokens", ())
        lists = (ctypes.c_char_p * len(texts))(*texts), U64(len(texts))
        lists += (I32 * len(tokens))(*tokens), U64(len(tokens))
        arguments = vocabulary(), grammar_str.encode(), grammar_root.encode()
        if not grammar_str:
            return
        made = call(
            f"sampler_init_{kind}", *arguments, *(lists if triggers else ()), result=POINTER
        )
        take = api._lib[
            "_Z25llama_grammar_accept_implR13llama_grammarPK11llama_vocabPK14llama_samplingi"
        ]
        self.hold(
            made,
            lambda held, token: take(held, vocabulary(), self.own, token),
            lambda held: call("grammar_free", held),
        )
        self.vocabulary = vocabulary

    make_grammar_lazy = make_grammar_lazy_patterns = make_grammar

    def run_grammar(self, array, **_):
        if self.held:
            name = "_Z25llama_grammar_sample_implPK13llama_grammarPK11llama_vocabPK14llama_sampling"
            apply = api._lib[f"{name}P22llama_token_data_array"]
            apply(self.held, self.vocabulary(), self.own, array)

    run_grammar_lazy = run_grammar_lazy_patterns = run_grammar


class Samplers:
    def __init__(self, path):
        self.path, self.model = path, None

    def vocabulary(self):
        """Return the model's vocabulary. It is loaded when the first stage needs it."""
        if self.path is None:
            raise Unsupported("without a model there is no vocabulary")
        self.model = self.model or IkModel(self.path)
        return POINTER(self.model._vocab)

    def sample(self, question, given):
        n_vocab, stages, lists = given["logits"].shape[1], [], []
        try:
            for said in question["chain"]:
                stages.append(Stage(said, n_vocab, self.vocabulary))
            rows = zip(given["logits"], given["draws"], question["accepted"], strict=True)
            for logits, draws, accepted in rows:
                for token in accepted:
                    for stage in stages:
                        stage.accept(token)
                lists += apply_all(stages, logits, draws)
        finally:
            for stage in stages:
                stage.close()
        shape = given["draws"].shape
        arrays = {
            "sizes": np.array([len(each) for each, _ in lists], np.int32).reshape(shape),
            "selected": np.array([token for _, token in lists], np.int32).reshape(shape),
        }
        whole = np.concatenate([each for each, _ in lists])
        return {}, arrays | {"ids": whole["id"], "logits": whole["logit"], "p": whole["p"]}


def apply_all(stages, logits, draws):
    """Yield the list after each stage, and the selected token; -1 if none is selected."""
    rows = np.zeros(len(logits), ROW)
    rows["id"], rows["logit"] = np.arange(len(logits)), logits
    data = ctypes.cast(rows.ctypes.data, ctypes.POINTER(api.llama_token_data))
    array = api.llama_token_data_array(data=data, size=len(rows), selected=-1, sorted=False)
    for stage, draw in zip(stages, draws, strict=True):
        rows["p"] = np.nan  # p of an earlier stage do not belong to this stage
        token = stage.apply(array, draw)
        if stage.shows_old_p:
            rows["p"] = np.nan
        at = (ctypes.addressof(array.data.contents) - rows.ctypes.data) // ROW.itemsize
        yield rows[at : at + array.size].copy(), -1 if token is None else token
