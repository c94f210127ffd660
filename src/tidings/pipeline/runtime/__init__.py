"""Spark itself.

spark_session       a session that is ready for the pipeline, and the Java that it runs on
spark_workarounds   what Spark has no call for
"""
