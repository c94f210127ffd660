"""Hold a process of the service at an exact point, so that it can be killed there.

Python imports a module of this name at its start where it finds one. The folder is on the path of a service that is
broken on purpose and of none other, and so it reaches the gateway, the driver and the Pythons that Spark starts,
without a line in the service itself. When a module of POINTS is loaded, its function is wrapped. The wrapper looks
whether the point is armed, which is a file of its name in the folder that TIDINGS_FAULT_POINTS names; the first to
rename that file to `<name>.held` has come to the point, and stays there until it is killed or let go (the file is
removed), or whoever started it is gone.

TIDINGS_FAULT_HOOKS names files of Python that are run here too, each with a function `after(module, change)`: when
that module is loaded, `change` is called with it.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time

# The point → the modules and functions that come to it, and whether the process is held before, after, or after it if
# it has answered something.
POINTS = {
    "append-written": [("tidings.store.log.log_writer", "Log._sync", "before")],  # in the transaction; not on the disk
    "append-committed": [
        ("tidings.store.log.log_writer", "Log._sync", "after")
    ],  # on the disk; `acknowledged` lags behind
    "append-durable": [("tidings.store.log.log_writer", "Log._write", "after")],  # all of it; nobody was answered
    "delivered": [
        ("tidings.store.mailboxes.deliveries", "Deliveries.acknowledge", "before")
    ],  # the subscriber has it; unnoted
    "batch-planned": [
        ("tidings.pipeline.sources.log_source", "LogStreamReader._planned", "answered")
    ],  # Spark has not noted it
    "batch-matched": [  # in a worker; nothing is loaded
        ("tidings.pipeline.steps.index_version", "ShardedVersion.match", "after"),
        ("tidings.pipeline.streams.shared_query", "_subscriptions", "after"),
    ],
    "batch-loaded": [  # in the mailboxes; the checkpoint lags behind
        ("tidings.pipeline.sinks.store_sink", "load", "after"),
    ],
    "view-built": [
        ("tidings.service.driver.domain_adaptation", "Adapter._build", "after")
    ],  # its files are there; no version
    "view-published": [
        ("tidings.service.driver.domain_index", "DomainIndex.adopt", "after")
    ],  # a version; no query has it
    "view-matched": [
        ("tidings.pipeline.steps.index_version", "ShardedVersion.match_visits", "after")
    ],  # in a worker, by the View
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


CHANGES = {}  # name of a module → what is called with it when it is loaded


def after(module, change):
    CHANGES.setdefault(module, []).append(change)


def wrap(armed, module, name, when):
    """Hold a process that comes to a function, where the point is armed."""
    *owners, function = name.split(".")

    def change(loaded):
        owner = functools.reduce(getattr, owners, loaded)
        setattr(owner, function, wrapped(getattr(owner, function), armed, when))

    after(module, change)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of CHANGES as Python does, and changes what they define."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            for change in CHANGES[name]:
                change(module)

        spec.loader.exec_module = exec_module
        return spec


if "TIDINGS_FAULT_POINTS" in os.environ:
    for point, places in POINTS.items():
        for place in places:
            wrap(os.path.join(os.environ["TIDINGS_FAULT_POINTS"], point), *place)
    for hook in filter(None, os.environ.get("TIDINGS_FAULT_HOOKS", "").split(os.pathsep)):
        with open(hook) as file:
            exec(compile(file.read(), hook, "exec"), {"after": after, "__name__": "hook"})
    sys.meta_path.insert(0, Finder())
