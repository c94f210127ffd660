"""Where a node listens: beyond loopback only with a secret, and always under an address that others can use."""

from __future__ import annotations

import pytest

from tidings.commands.node_place import place_of
from tidings.errors import TidingsError


@pytest.mark.parametrize("listen", ["127.0.0.1:7000", "127.0.0.9:7000", "localhost:7000", "[::1]:7000", "::1:7000"])
def test_a_node_without_a_secret_listens_on_loopback(listen: str) -> None:
    place = place_of(listen, None, has_secret=False)
    assert place.address(7000) == listen


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:7000", "10.0.0.1:7000", "[::]:7000", "203.0.113.5:0", "[2001:db8::1]:7000"]
)
def test_a_node_without_a_secret_does_not_listen_beyond_loopback(listen: str) -> None:
    with pytest.raises(TidingsError, match=r"loopback only .*give every node the same --secret-file .*; make one"):
        place_of(listen, "10.0.0.1:7000", has_secret=False)
    assert place_of(listen, "10.0.0.1:7000", has_secret=True).address(7000) == "10.0.0.1:7000"


@pytest.mark.parametrize(
    ("listen", "advertise", "address"),
    [
        ("10.0.0.1:7000", None, "10.0.0.1:7000"),
        ("10.0.0.1:0", None, "10.0.0.1:4711"),
        ("0.0.0.0:7000", "node1.example.org:80", "node1.example.org:80"),
        ("0.0.0.0:0", "node1.example.org:0", "node1.example.org:4711"),
        ("[::]:7000", "[2001:db8::1]:7000", "[2001:db8::1]:7000"),
    ],
)
def test_others_are_told_what_is_advertised_or_where_it_listens(
    listen: str, advertise: str | None, address: str
) -> None:
    place = place_of(listen, advertise, has_secret=True)
    assert place.address(place.port or 4711) == address


@pytest.mark.parametrize(
    ("listen", "advertise"), [("0.0.0.0:7000", None), ("[::]:7000", None), ("10.0.0.1:7000", "0.0.0.0:7000")]
)
def test_an_address_that_stands_for_all_is_not_told_to_others(listen: str, advertise: str | None) -> None:
    with pytest.raises(TidingsError, match="--advertise HOST:PORT"):
        place_of(listen, advertise, has_secret=True)


@pytest.mark.parametrize(
    ("listen", "advertise", "error"),
    [
        ("nowhere", None, "write host:port"),
        ("[]:70", None, "write host:port"),
        ("127.0.0.1:7000", "nowhere", "write host:port"),
        ("nowhere.invalid:7000", None, "cannot listen at nowhere.invalid:7000: .*; give another --listen"),
    ],
)
def test_what_is_no_address_is_an_error(listen: str, advertise: str | None, error: str) -> None:
    with pytest.raises(TidingsError, match=error):
        place_of(listen, advertise, has_secret=True)
