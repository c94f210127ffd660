"""Spark itself: the session, Java, data sources, worker processes."""
