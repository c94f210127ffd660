"""Settings that have no option: short pauses and small limits, so that what takes days takes seconds.

TIDINGS_TORTURE_SETTINGS has them in JSON, by module and class. `after` is given by `points/sitecustomize.py`.
"""

import functools
import json
import os

GIVEN = json.loads(os.environ["TIDINGS_TORTURE_SETTINGS"])


def change(module):
    for name, values in GIVEN[module.__name__].items():
        kept = getattr(module, name).__init__
        unknown = values.keys() - getattr(module, name).__dataclass_fields__
        assert not unknown, f"{module.__name__}.{name} has no {', '.join(sorted(unknown))}"
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}

        @functools.wraps(kept)
        def made(self, *given, kept=kept, values=values, **named):
            kept(self, *given, **{**values, **named})

        getattr(module, name).__init__ = made


for module in GIVEN:
    after(module, change)  # noqa: F821
