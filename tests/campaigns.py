"""What `make test-all` runs and `make test` does not, by file or by test of a file.

Each row says what the tests repeat over many cases. What they prove is proven on fewer cases by the
tests that stay: a change is seen there first.
"""

CAMPAIGNS = {
    "differential/test_all_types.py": "a whole check of a model of every weight type",
    "harness/acid/test_acid_catalogue.py": "the report of every mistake that acid models name",
    "harness/acid/test_acid_architectures.py": "every honest engine on every acid model",
}


def campaign_of(node: str) -> str:
    """Return the row that a test belongs to, by its pytest id; "" if `make test` runs it."""
    path = node.removeprefix("tests/")
    return next((row for row in CAMPAIGNS if path.startswith(row)), "")
