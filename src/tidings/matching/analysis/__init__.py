"""What can be said about a table of filters without events.

implications      filters that never or always match, are the same, or imply another
rectangles        filters as sets of rectangles of codes
rectangle_forest  k-d trees of rectangles; filters in an order in which neighbours are alike
crowded_values    where the boxes of a table pile up
"""
