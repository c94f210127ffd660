"""Index digests over Scribe and Pastry (Tam, Azimi and Jacobsen, 2003)."""
