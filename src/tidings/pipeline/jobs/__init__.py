"""Batch jobs over tables of subscriptions and of events.

match_files         `tidings match`: files in, files out
backtesting         what a draft filter would have delivered over stored events
backtest_report     the same for people: a report and a picture
time_buckets        stretches of time to count events by
table_analysis      which subscriptions never match, which values are crowded, what each subscriber costs
analysis_report     the same for people: a report, tables and pictures
adaptation          statistics of all subscriptions and events, and the Views that follow
adaptation_report   the same for people and for files
"""
