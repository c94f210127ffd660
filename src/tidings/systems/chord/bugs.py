"""Bugs of lists on a ring: the same by hash and in order."""

from tidings.systems.opchord.bugs import bugs

__all__ = ["bugs"]
