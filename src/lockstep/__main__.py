"""`python -m lockstep`: the command line."""

from lockstep.harness.entry import main

main()
