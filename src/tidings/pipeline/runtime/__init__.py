"""Spark itself.

spark_session       a session that is ready for the pipeline, and the Java that it runs on
worker_daemon       forks Python workers that have everything imported
warm_up             made-up events, matched before the first real one comes
spark_workarounds   what Spark has no call for
"""
