"""Machine code from Python: the decorator, hashes, vector instructions."""
