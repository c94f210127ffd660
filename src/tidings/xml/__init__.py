"""Path queries over XML documents: linear XPath 1.0.

tree       a path as plain records          parse      text ─► path, errors with their place
document   text ─► XML tree, safely         interpret  what a path means, over one document
"""
