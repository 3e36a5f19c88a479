"""Code that several kinds of goldens share."""
