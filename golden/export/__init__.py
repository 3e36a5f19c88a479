"""`lockstep golden export`: writes the vectors of one level for use without Lockstep."""
