"""What nodes are made of: ids, messages, effects.

Messages and effects are named tuples: immutable, so that a simulator may hand the same object to the receiver, and
quick to make, for a simulation makes millions. Effects are carried out in the order of the list.

The types of a message's fields are what the codec holds a message from the wire to (`message_codec`): an `int`
is a count, from 0 and below 2^63; what has another range says so by `Within`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable


class Within(NamedTuple):
    """The least and the most that an integer on the wire can be, or that a text's length can be."""

    least: int
    most: int


class RingId(NamedTuple):
    """Marks an id: its range is the ring's, which the codec is given."""


MAX_BODY = 1 << 20  # bytes of an event as JSON
MAX_AHEAD_MS = 86_400_000  # by which the clock of another node may be ahead: a day
MAX_NAME = 256  # characters of the id of an event or of a subscription
MAX_TEXT = 1 << 16  # characters of a filter

Id: TypeAlias = Annotated[int, RingId()]
Name: TypeAlias = Annotated[str, Within(0, MAX_NAME)]
Message: TypeAlias = Any  # a named tuple of an overlay's `MESSAGES`
Tag: TypeAlias = Any  # of a timer: any named tuple or text


class Send(NamedTuple):
    """Hand the message to another node; it may be lost, and `on_undelivered` is called if nobody is there."""

    to: Id
    message: Message


class SetTimer(NamedTuple):
    """Call `on_timer` with this tag after so long. Timers are not withdrawn: a node knows which ones still matter."""

    after_ms: int
    tag: Tag


class Deliver(NamedTuple):
    """Tell the subscriber, who is attached to this node, of an event."""

    subscription: str
    event: Event


class Ready(NamedTuple):
    """The node has joined: others can reach it, and it takes subscriptions and events."""


class Active(NamedTuple):
    """A subscription is in place: every event published from now on meets it."""

    subscription: str


class Dropped(NamedTuple):
    """A published event goes nowhere, though a subscription may ask for it: a false negative of the system."""

    event: str


class Grow(NamedTuple):
    """The nodes are saturated: the driver may add one."""


Effect: TypeAlias = Send | SetTimer | Deliver | Ready | Active | Dropped | Grow
Effects: TypeAlias = list[Effect]


class Event(NamedTuple):
    """A published event: an id that nobody else gives, and its record as JSON."""

    id: Name
    body: Annotated[str, Within(1, MAX_BODY)]


class NotMember(NamedTuple):
    """A message, back to its sender: who got it crashed, and has not joined again."""

    message: Message


class Node(Protocol):
    """What drives a node needs of it."""

    @property
    def id(self) -> Id: ...

    def start(self, contact: Id | None, now_ms: int) -> Effects:
        """Join through a node that is there already, or be the first."""

    def on_message(self, sender: Id, message: Message, now_ms: int) -> Effects: ...

    def on_timer(self, tag: Tag, now_ms: int) -> Effects: ...

    def on_undelivered(self, to: Id, message: Message, now_ms: int) -> Effects:
        """The transport found nobody at the other end: the node crashed, or cannot be reached."""


class PubSubNode(Node, Protocol):
    """A node that subscribers and publishers can be attached to."""

    def subscribe(self, subscription: str, text: str, now_ms: int) -> Effects: ...

    def unsubscribe(self, subscription: str, now_ms: int) -> Effects: ...

    def publish(self, event: Event, now_ms: int) -> Effects: ...

    def leave(self, now_ms: int) -> Effects:
        """Hand everything over; the node is stopped once the effects are carried out."""

    def check(self, part: Message, now_ms: int) -> None:
        """Raise an error where a part of a message from the wire, of the right types, makes no sense here.

        It is called for every named tuple in a message before `on_message` is; it changes nothing.
        """


@runtime_checkable
class Polled(Protocol):
    """A node that may keep what it would deliver until it is asked."""

    def poll(self, subscription: str, limit: int) -> Effects: ...


Handlers: TypeAlias = dict[type, Callable[..., Effects]]


class Dispatching:
    """Finds the method for a message by its type: one table a class, so that a node is small, and a subclass may add.

    `handlers` are the methods, a table at the end of the class; one that a subclass overrides is called as overridden.
    """

    handlers: ClassVar[Handlers] = {}
    _methods: ClassVar[Handlers] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        merged: Handlers = {}
        for parent in reversed(cls.__mro__):
            merged |= parent.__dict__.get("handlers", {})
        cls._methods = {kind: getattr(cls, method.__name__) for kind, method in merged.items()}

    def on_message(self, sender: Id, message: Message, now_ms: int) -> Effects:
        return self._methods[type(message)](self, sender, message, now_ms)

    def check(self, part: Message, now_ms: int) -> None:
        """Raise an error if a part of a message from the wire makes no sense; see `PubSubNode.check`."""
