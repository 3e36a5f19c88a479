"""Cases of operations at their edges, one file per family."""
