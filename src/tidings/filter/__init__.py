"""Filters: Spark SQL WHERE clauses, from text to the columns that matching works on.

lexer      text ─► shape and literals            tree       the typed tree
parse      shape ─► tree, over a domain          coerce     Spark's implicit casts
values     what operators do to one value        interpret  a tree over one record
sets       unions of intervals                   leaves     predicate ─► set of values
normal     tree ─► union of boxes                columnar   many filters' boxes, in columns
cost       what a filter may cost, with a limit
compile    a column of filters ─► columnar, by shapes and planned where many share a shape
"""
