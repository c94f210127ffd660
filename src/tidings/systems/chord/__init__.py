"""Chord: a hash of every value (Triantafillou and Aekaterinidis, 2004)."""
