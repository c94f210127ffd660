"""OPChord: values in their order around the ring (Triantafillou and Aekaterinidis, 2004)."""
