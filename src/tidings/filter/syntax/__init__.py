"""From a filter's text to its typed tree, and back."""
