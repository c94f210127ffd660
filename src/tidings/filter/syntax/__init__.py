"""From a filter's text to its typed tree, and back.

lexer           text ─► tokens, a shape, and the literals taken out of it
parser          shape ─► tree, over a domain
coercion        the type in which two operands meet: Spark's implicit casts
path_arguments  the path of `xpath_boolean`, and its prefixes
writer          tree ─► text
"""
