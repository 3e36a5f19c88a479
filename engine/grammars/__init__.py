"""GBNF grammars: a text becomes a tree, the tree a table, and the table reads tokens.

`parser` reads the text, `table` refuses left recursion and oversized grammars, `matcher` follows
all readings at once. Grammars are untrusted: each step has a limit, and every refusal is an
InvalidGrammar.
"""
