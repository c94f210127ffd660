"""What a filter means: Spark's rules for one record.

interpreter  a walk of the tree over one record, and the XML nodes that a filter selects
operators    casts, arithmetic, comparison and functions on one value
text_casts   texts read as booleans, numbers, dates and timestamps
patterns     LIKE and RLIKE
"""
