"""A matcher as one file, mapped into the memory of any number of processes."""
