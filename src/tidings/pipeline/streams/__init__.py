"""Matching without end: queries, their checkpoints, and versions of the subscriptions that change meanwhile."""
