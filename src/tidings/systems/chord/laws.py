"""Laws of lists on a ring: the same by hash and in order."""

from tidings.systems.opchord.laws import laws

__all__ = ["laws"]
