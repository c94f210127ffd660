"""Subscriptions that change while events are matched: segments, the newest in an index that grows, merging."""
