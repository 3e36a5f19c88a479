"""`python -m lockstep.harness.cli` is `lockstep`."""

from lockstep.harness.cli import main

main()
