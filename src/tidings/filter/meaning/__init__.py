"""What a filter means: an interpreter over one record, and Spark's rules for values."""
