"""Lexical shortlists: output only the likely translations of the source tokens."""
