"""Many filters at once: filters of one shape share a plan.

compiler         a column of texts ─► a `FilterTable`
shapes           texts without their literals, templates, and the filters that share a plan
literal_scanner  shapes and literals of a large column, in one pass over its bytes
literal_columns  the literals of one shape, as columns of values
plans            the plan of a shape: its normal form, with holes for literals
plan_execution   a plan carried out on all filters that it serves
filter_reader    filters of new shapes, read by predicates that were seen before
"""
