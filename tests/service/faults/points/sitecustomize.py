"""Hold a process of the service at an exact point, so that it can be killed there.

Python imports a module of this name at its start where it finds one. The folder is on the path of a service that is
broken on purpose and of none other, and so it reaches the gateway, the driver and the Pythons that Spark starts,
without a line in the service itself. When a module of POINTS is loaded, its function is wrapped. The wrapper looks
whether the point is armed, which is a file of its name in the folder that TIDINGS_FAULT_POINTS names; the first to
rename that file to `<name>.held` has come to the point, and stays there until it is killed or let go (the file is
removed), or whoever started it is gone.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time

# The point → the module, the function, and whether the process is held before it, after it, or after it if it has
# answered something.
POINTS = {
    "append-written": ("tidings.store.log", "Log._sync", "before"),  # in the transaction; not on the disk
    "append-committed": ("tidings.store.log", "Log._sync", "after"),  # on the disk; `acknowledged` lags behind
    "append-durable": ("tidings.store.log", "Log._write", "after"),  # all of it; nobody was answered
    "delivered": ("tidings.store.deliveries", "Deliveries.acknowledge", "before"),  # the subscriber has it; unnoted
    "batch-planned": ("tidings.pipeline.log_source", "LogStreamReader._planned", "answered"),  # Spark has not noted it
    "batch-matched": ("tidings.pipeline.pinned", "PinnedVersion.match", "after"),  # in a worker; nothing is loaded
    "batch-loaded": ("tidings.pipeline.store_sink", "load", "after"),  # in the mailboxes; the checkpoint lags behind
    "view-built": ("tidings.service.driver_adapting", "Adapter._build", "after"),  # its files are there; no version is
    "view-published": ("tidings.service.driver_index", "DomainIndex.adopt", "after"),  # a version; no query has it
    "view-matched": ("tidings.pipeline.pinned", "PinnedVersion.match_visits", "after"),  # in a worker, by the View
}


def hold(armed):
    held = armed + ".held"
    try:
        os.rename(armed, held)
    except OSError:
        return  # not armed, or another process was first
    parent = os.getppid()
    while os.path.exists(held):
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(0.005)


def wrapped(function, armed, when):
    @functools.wraps(function)
    def wrapper(*given, **named):
        if when == "before":
            hold(armed)
        answer = function(*given, **named)
        if when == "after" or (when == "answered" and answer is not None):
            hold(armed)
        return answer

    return wrapper


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of POINTS as Python does, and wraps what they define."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        points = [point for point, (module, _, _) in POINTS.items() if module == name]
        if not points:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            for point in points:
                *owners, function = POINTS[point][1].split(".")
                owner = functools.reduce(getattr, owners, module)
                armed = os.path.join(self.folder, point)
                setattr(owner, function, wrapped(getattr(owner, function), armed, POINTS[point][2]))

        spec.loader.exec_module = exec_module
        return spec


if "TIDINGS_FAULT_POINTS" in os.environ:
    sys.meta_path.insert(0, Finder(os.environ["TIDINGS_FAULT_POINTS"]))
