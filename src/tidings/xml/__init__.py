"""XML documents, feeds, and path queries over them: linear XPath 1.0.

document          text ─► XML tree, safely, and its nodes as columns
feed              an RSS or Atom feed ─► its items
path_parser       text ─► path, with namespaces; errors with their place
path_meaning      what a path means, over one document; the nodes that it selects
document_columns  many texts ─► columns of nodes
path_trie         many paths as one trie, in arrays
path_kernels      a walk over the nodes, all paths at once
path_index        the whole: documents ─► the paths that hold in each
"""
