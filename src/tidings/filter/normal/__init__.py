"""The normal form of a filter: a union of boxes, each with a residual.

value_sets       sets of one attribute's values: unions of intervals, and NULL
leaf_predicates  predicate ─► set of values
normal_form      tree ─► boxes and residuals
residuals        the residuals of many filters, with their literals in columns
filter_table     the normal forms of many filters, in columns
description      a normal form in words
"""
