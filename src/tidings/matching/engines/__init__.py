"""What finds the entries that an event satisfies: entries and codes, cells, blocks, and the router between them."""
