"""The driver: the process that matches on Spark."""
