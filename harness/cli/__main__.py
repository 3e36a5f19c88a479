"""`python -m harness.cli` is `lockstep`."""

from harness.cli import main

main()
