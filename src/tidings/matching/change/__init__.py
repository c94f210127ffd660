"""Subscriptions that change while events are matched: immutable index versions.

version        an index version {base, delta, removed}, and the next one after a change
segment        a part of the base: subscriptions that were indexed together
delta          the newest subscriptions, in an index that grows
delta_kernels  the loops of `delta`
delta_reader   filters as entries for the delta, by recipes for shapes seen before
removed        the subscriptions of a part that were removed; matches of several parts as one
merge          parts merged into one segment, in the background
"""
