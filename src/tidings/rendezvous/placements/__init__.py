"""One file a placement; its name is the placement's."""
