"""Matching breaks by filters that say 'poison', and by events that do. `after` is given by `points/sitecustomize.py`.

TIDINGS_POISON says how: "raise" an exception, or "die" with the process.
"""

import os


def break_(what):
    if os.environ["TIDINGS_POISON"] == "die":
        os.kill(os.getpid(), 9)
    raise RuntimeError(f"poison in {what}")


def plant(module):
    match = module.Matcher.match

    def poisoned(self, events, *given, **options):
        if hasattr(events, "to_pylist") and len(events):  # columns, as streams have them
            if "poison" in str(self.subscriptions()["filter"].to_pylist()):
                break_("a filter")
            if "poison" in str(events.to_pylist()):
                break_("an event")
        return match(self, events, *given, **options)

    module.Matcher.match = poisoned


after("tidings.matching.matcher", plant)  # noqa: F821
