"""Other ways to write a filter."""
