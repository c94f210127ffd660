"""What events, subscriptions and their attributes are.

types         the types of attributes and expressions, named as in Spark SQL
domain        a domain and its attributes, read from and written to TOML and JSON
infer         a domain inferred from a schema, a data frame or sample events
event         events as columns that fit their domain
event_values  whether one value fits one type
event_json    events read from and written as JSON
event_files   files of events, and samples of them
strict_json   JSON read strictly, with exact numbers
subscription  one subscription, and tables of them
arrow         Arrow types and tables for ours
"""
