"""Tests that only `make test-all` runs, not `make test`, listed by file or by test.

The value of a row says what its tests repeat. Tests that `make test` runs check the same on fewer
cases, so that a fault shows there first.
"""

CAMPAIGNS = {
    "differential/test_all_types.py": "a whole check of a model of every weight type",
    "differential/test_any_arch.py": "a check of a made model of many architectures",
    "differential/test_catalogue.py": "wrong engines of each family, found where they are wrong",
    "differential/test_catalogue_of_graphs.py": "wrong graphs of each architecture",
    "differential/test_check.py::test_a_random_clean_case_raises_no_alarm": "random models",
    "differential/test_clean_cases.py": "random models on which a right engine was once accused",
    "differential/test_designs.py::test_no_honest_design_is_accused": "each design and preset",
    "differential/test_diffusion_models.py": "models whose tokens see later tokens",
    "differential/test_honest_designs.py": "a whole check of engines of other designs",
    "differential/test_known_schedules.py": "short campaigns of schedules",
    "differential/test_original_tokenizers.py": "texts on which llama.cpp differs from originals",
    "differential/test_sampler_chains.py": "1,000 chains of samplers on 10,000 rows",
    "differential/test_tokens.py::test_every_answer_on_a_real_vocabulary_is_that_of_llama_cpp": (
        "real vocabularies"
    ),
    "differential/test_tokens_bpe.py": "606 texts under every pre-tokenizer",
    "differential/test_vocabularies.py": "our tokenizer and wrong ones on llama.cpp's vocabularies",
    "differential/test_wrong_weights.py": "every wrong decoder in a whole check",
    "engine/ops/test_fast_products.py::test_other_processors_multiply_equally": "other processors",
    "golden/test_other_cpus.py": "vectors made on other processors",
    "harness/acid/test_acid.py::test_every_type_is_ok_in_our_engine": "every weight type",
    "harness/acid/test_acid_architectures.py": "every honest engine on every acid model",
    "harness/acid/test_acid_catalogue.py": "the report of every mistake that acid models name",
    "harness/check/test_degenerate.py": "right and wrong engines on models with absurd numbers",
}


def campaign_of(node: str) -> str:
    """Return the row to which a test belongs, by its pytest id, or "" for a test that `make test`
    runs."""
    path = node.removeprefix("tests/")
    return next((row for row in CAMPAIGNS if path.startswith(row)), "")
