"""Why an event matches a filter or does not.

explanation  one event and one filter, predicate by predicate, with distances
near_misses  the filters of many that an event came nearest to
"""
