"""`lockstep golden export`: vectors of one level, in a form that needs no Lockstep."""
