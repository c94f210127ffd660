"""Lines, rings and boxes, which placements are made of.

line_positions  where filters and events lie on an attribute's line: places, cells, parts
hashed_values   values by their hash on a ring
node_ring       a ring of identifiers with nodes on it, and Views with lists on one
rtree           boxes found by points and boxes
key_pairs       pairs of numbers, each once; balanced owners
"""
