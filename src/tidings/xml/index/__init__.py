"""Many paths over many XML documents, in one structure that all paths share.

conjunctive  a path as alternatives without OR         trie      those of all paths, step by step, as arrays
documents    XML texts as columns of nodes             kernels   a walk over the nodes, all paths at once
index        the whole: documents ─► which paths hold  answers   truth of (document, path) pairs, for filters
"""
