"""Sonnet: XML documents find path queries by digests on a ring (Zhou et al., SIGMOD 2007)."""
