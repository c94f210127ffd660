"""See it work: a month of real flights from New York against a few thousand filters.

flights     the events, and how they were drawn
people      the subscribers and their filters
batch_demo  tidings demo: match the month in this process
feed_demo   tidings demo feeds: paths over XML
live_demo   tidings serve --demo: the month through a running service
"""
