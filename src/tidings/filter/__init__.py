"""Filters: Spark SQL WHERE clauses, from text to the columns that matching works on.

tree           the typed tree of a filter
syntax/        text ─► tree, and tree ─► text
meaning/       what a tree means, over one record
normal/        tree ─► boxes and a residual
compile/       many texts ─► normal forms in columns
cost           what a filter may cost, with a limit
xpath_dialect  filters that are paths, events that are documents
"""
