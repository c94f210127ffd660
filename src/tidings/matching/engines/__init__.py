"""How an index finds the entries that an event satisfies.

entries            normal forms as entries: an interval of codes on each of some attributes
event_codes        the values of events as codes and cells
engine_choice      which engine serves which entries, by estimated cost
cells              selective entries, each in one cell of a hash table
cell_kernels       the loops of `cells`
guests             entries of the delta in the cells of a segment
blocks             wide ranges, compared 64 at a time
path_engine        filters that are one path over XML
residual_matching  what engines leave open: residuals, evaluated on the pairs found
found_pairs        what engines find, as slots by event
"""
