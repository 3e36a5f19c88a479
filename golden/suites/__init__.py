"""What the goldens hold, one file per kind: how it is made, checked and replayed."""
