"""Matching without end: queries, their checkpoints, and subscriptions that change meanwhile.

stream_query     `stream` and `Stream`: source → match → sink, each micro-batch pinned to a version
shared_query     one stream for many small domains
checkpoint       a query's directory: what makes it the same query after a restart
version_files    how versions of the subscriptions reach a running query
index_changes    `IndexChanges`: change a compiled index a little, without compiling it again
view_change      from one View of a stream's subscriptions to the next, if it pays
failure_search   which filter or event makes a batch fail
"""
