"""Bugs of overlay processes, put into a node that is broken on purpose: those they once had, and one of all systems.

Python imports a module of this name at its start where it finds one; the folder is on the path of such nodes alone, and
TIDINGS_PLANTED says which bug.

    wedge     a frame of more than 1 MiB stays at the head of its link's queue, and nothing behind it is ever sent
    untyped   messages have names and numbers of fields, and any values; nobody asks whether they make sense
    mute      the node of the system's own bug of this name: it does everything but deliver
"""

import os


def wedge():
    from tidings.systems.protocols import link

    run = link.Link._run

    async def wedged(self):
        assert len(self._queue[0].frame) <= 1 << 20, "too large"
        await run(self)

    link.Link._run = wedged


def untyped():
    from tidings.systems.protocols import many_domains as domains
    from tidings.systems.protocols import message_codec as codec

    def any_of(self, read, depth=0):
        if isinstance(read, list):
            return tuple(any_of(self, item) for item in read)
        if not isinstance(read, dict):
            return read
        ((name, fields),) = read.items()
        if name not in self._kinds or not isinstance(fields, list) or len(fields) != len(self._fields[name]):
            raise codec.MessageError("message: unknown")
        return self._kinds[name](*(any_of(self, field) for field in fields))

    codec.Codec.from_plain = any_of
    domains.DomainsNode.check = lambda self, message, now_ms: None


def mute():
    from dataclasses import replace

    from tidings.systems.protocols import many_domains as domains

    node_of = domains.node_of

    def muted(named, *given, **more):
        named.__dict__["overlay"] = replace(named.overlay, node=named.bugs["mute"].node)  # a cached property
        return node_of(named, *given, **more)

    domains.node_of = muted


if "TIDINGS_PLANTED" in os.environ:
    {"wedge": wedge, "untyped": untyped, "mute": mute}[os.environ["TIDINGS_PLANTED"]]()
