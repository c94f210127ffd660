"""The clock of every Python process of the service, set forward or back by the seconds in the file TIDINGS_CLOCK.

Monotonic clocks go on as they do when a real clock is set. `after` is given by `points/sitecustomize.py`.
"""

import datetime
import os
import time
import types

FILE = os.environ["TIDINGS_CLOCK"]
LOOK_SECONDS = 0.02
real_time, real_time_ns, monotonic = time.time, time.time_ns, time.monotonic
looked = [-1.0, 0.0]  # when, and what was found


def offset():
    now = monotonic()
    if now - looked[0] > LOOK_SECONDS:
        try:
            with open(FILE) as file:
                looked[1] = float(file.read() or 0)
        except (OSError, ValueError):
            pass
        looked[0] = now
    return looked[1]


time.time = lambda: real_time() + offset()
time.time_ns = lambda: real_time_ns() + int(offset() * 1e9)


def jumps(module):
    """Modules that ask `datetime` rather than `time`."""

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=offset())

    module.dt = types.SimpleNamespace(**{**vars(datetime), "datetime": Jumping})


for name in (
    "tidings.service.data.backup",
    "tidings.service.gateway.retention",
    "tidings.service.gateway.webhook_sending",
):
    after(name, jumps)  # noqa: F821
