"""Lines, cells, rings and boxes, which placements are made of."""
