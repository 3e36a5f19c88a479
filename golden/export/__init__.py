"""`lockstep golden export`: vectors of one level to take away, in a form that needs none of us."""
