"""Wrong engines with one known mistake each. The harness must catch each engine and locate its
mistake."""
