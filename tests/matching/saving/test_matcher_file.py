"""A matcher that is saved and loaded is the same matcher; a file that is not whole, or not ours, is refused."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from numba.core import event as numba_event

import tidings
from tidings import Attribute, Domain, Matcher, Subscription, SubscriptionError
from tidings.matching.saving import matcher_file as storage
from tidings.testing import workloads
from tidings.testing.oracle import brute_force
from tidings.testing.strategies import Case, cases

DOMAIN = Domain(
    "d",
    [
        Attribute("s", "string", unit="name", allowed=["a", "b", "c"]),
        Attribute("x", "double", min=0, max=100.5),
        Attribute("n", "bigint"),
        Attribute("price", "decimal(30,2)", precision="0.05"),
        Attribute("tags", "array<string>"),
    ],
    [["s", "n"]],
)
EVENTS: list[dict[str, Any]] = [
    {"s": s, "x": x, "n": n, "price": price, "tags": tags}
    for s, tags in (("a", ["red"]), ("b", []), (None, None))
    for x, price in ((0.5, "12.50"), (5.0, None), (50.0, "12345678901234567890.05"))
    for n in (1, -(2**63))
]
FILTERS = [
    "s = 'a' AND x > 2.5", "x >= 1 AND x < 40", "n = 1 OR s IS NULL", "n > -9223372036854775808", "x * 2 > n + 3",
    "x * 2 > n + 7", "price > 12.5 AND price < 99999999999999999999.5", "array_contains(tags, 'red')", "s LIKE '%b%'",
    "n NOT IN (1, 2, 3) AND x NOT IN (5, 6)", "s RLIKE '^a|c$'", "TRUE", "x < 0 AND x > 1", "lower(s) = 'a'",
]  # fmt: skip


def _subscriptions() -> dict[Any, str]:
    return {f"id{number}": text for number, text in enumerate(FILTERS)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "subscriptions.tidings"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A saved matcher, as bytes."""
    path = tmp_path_factory.mktemp("saved") / "whole"
    matcher = Matcher(_subscriptions(), DOMAIN)
    matcher.match(EVENTS)
    matcher.save(path)
    return path.read_bytes()


# ---------------------------------------------------------------------- the same matcher


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(events=10, filters=12))
def test_a_loaded_matcher_finds_what_the_saved_one_finds(case: Case, path: Path) -> None:
    subscriptions = case.readable()
    matcher = Matcher(subscriptions, case.domain)
    matcher.match(case.events)
    matcher.save(path)
    loaded = Matcher.load(path)
    assert loaded.domain == case.domain
    assert loaded.match(case.events).pairs() == brute_force(subscriptions, case.events, case.domain)


@contextmanager
def _compilations() -> Iterator[list[Any]]:
    class Listener(numba_event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            heard.append(event.data["dispatcher"])

        def on_end(self, event: Any) -> None:
            pass

    heard: list[Any] = []
    listener = Listener()
    numba_event.register("numba:compile", listener)
    try:
        yield heard
    finally:
        numba_event.unregister("numba:compile", listener)


@pytest.mark.parametrize("name", ["bluedove", "alerts", "strings", "mixed"])
def test_a_loaded_matcher_finds_the_same_on_the_workloads_and_compiles_nothing_anew(name: str, path: Path) -> None:
    workload = getattr(workloads, name)(subscriptions=2000, events=200)
    matcher = Matcher(pa.table({"id": np.arange(2000), "filter": workload.filters}), workload.domain)
    expected = matcher.match(workload.events)
    matcher.save(path)
    loaded = Matcher.load(path)
    with _compilations() as compiled:
        assert loaded.match(workload.events).pairs() == expected.pairs()
    assert compiled == []
    assert loaded.stats().engines == matcher.stats().engines


def test_every_ability_works_after_loading(path: Path) -> None:
    model = _subscriptions()
    matcher = Matcher(model, DOMAIN)
    matcher.match(EVENTS)
    matcher.save(path)
    loaded = Matcher.load(path, threads=1)
    for event in EVENTS[:4]:
        assert [str(near) for near in loaded.nearest(event)] == [str(near) for near in matcher.nearest(event)]
        assert str(loaded.explain(event, "id4")) == str(matcher.explain(event, "id4"))
    loaded.add({"new": "x > 3"})
    loaded.upsert({"id0": "s = 'b'", "newer": "n = 1"})
    loaded.remove(["id1", "id8"])
    model = {id_: text for id_, text in model.items() if id_ not in ("id1", "id8")}
    model |= {"new": "x > 3", "id0": "s = 'b'", "newer": "n = 1"}
    assert set(loaded.match(EVENTS).pairs()) == set(brute_force(list(model.items()), EVENTS, DOMAIN))
    assert len(loaded) == len(model)
    loaded.replace_all({"only": "TRUE"})
    assert loaded.match(EVENTS[:1]).pairs() == [(0, "only")]
    assert loaded.stats().subscriptions == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_matcher_saved_and_loaded_between_changes_is_that_of_its_subscriptions(seed: int, path: Path) -> None:
    random = Random(seed)
    model: dict[Any, str] = {number: random.choice(FILTERS) for number in range(40)}
    matcher = Matcher(dict(model), DOMAIN)
    for turn in range(1, 13):
        match random.choice(("add", "upsert", "remove", "load", "load")):
            case "add":
                more = {100 * turn + number: random.choice(FILTERS) for number in range(random.randint(1, 30))}
                matcher.add(more)
                model |= more
            case "upsert":
                more = {id_: random.choice(FILTERS) for id_ in random.sample(sorted(model), 5)}
                matcher.upsert(more)
                model |= more
            case "remove":
                gone = random.sample(sorted(model), 6)
                matcher.remove(gone)
                model = {id_: text for id_, text in model.items() if id_ not in gone}
            case "load":
                matcher.save(path)
                matcher = Matcher.load(path)
        assert len(matcher) == len(model)
        if turn % 3 == 0:
            assert set(matcher.match(EVENTS).pairs()) == set(brute_force(list(model.items()), EVENTS, DOMAIN))


def test_removed_subscriptions_and_several_segments_are_kept(path: Path) -> None:
    model: dict[Any, str] = {number: f"x > {number % 60} AND s = 'a'" for number in range(2000)}
    matcher = Matcher(dict(model), DOMAIN)
    matcher.match(EVENTS)
    for batch in range(2):
        more = {5000 + 100 * batch + number: f"n = {number % 3}" for number in range(100 >> 3 * batch)}
        matcher.add(more)
        model |= more
    gone = Random(1).sample(sorted(model), 300)
    matcher.remove(gone)
    model = {id_: text for id_, text in model.items() if id_ not in set(gone)}
    assert matcher.stats().segments > 1
    matcher.save(path)
    loaded = Matcher.load(path)
    assert len(loaded) == len(model)
    assert set(loaded.match(EVENTS).pairs()) == set(brute_force(list(model.items()), EVENTS, DOMAIN))
    with pytest.raises(SubscriptionError, match="no subscription"):
        loaded.remove(gone[:1])
    loaded.add({gone[0]: "TRUE"})
    assert (0, gone[0]) in loaded.match(EVENTS).pairs()


def test_validity_subscribers_and_domains_are_kept(path: Path) -> None:
    subscriptions = [
        Subscription("a", "TRUE", subscriber="ana", valid_from=5),
        Subscription("b", "TRUE", domain="d", valid_to=5),
    ]
    Matcher(subscriptions, DOMAIN).save(path)
    loaded = Matcher.load(path)
    assert loaded.match(EVENTS[:2], positions=[4, 5]).pairs() == [(0, "b"), (1, "a")]
    loaded.save(path)
    assert Matcher.load(path).match(EVENTS[:2], positions=[4, 5]).pairs() == [(0, "b"), (1, "a")]


@pytest.mark.parametrize("subscriptions", [_subscriptions(), {}], ids=["some", "none"])
@pytest.mark.parametrize("domain", [DOMAIN, None], ids=["domain", "no domain"])
def test_a_matcher_that_has_seen_no_events_is_saved_as_it_is(subscriptions: Any, domain: Any, path: Path) -> None:
    matcher = Matcher(subscriptions, domain)
    matcher.save(path)
    loaded = Matcher.load(path)
    assert (len(loaded), loaded.domain) == (len(subscriptions), domain)
    if not subscriptions or domain is not None:
        expected = brute_force(list(subscriptions.items()), EVENTS, DOMAIN)
        assert loaded.match(EVENTS).pairs() == expected
    else:
        loaded.upsert({"id0": "x > 1", **dict.fromkeys(("id6", "id7"), "n = 1")})
        matcher.upsert({"id0": "x > 1", **dict.fromkeys(("id6", "id7"), "n = 1")})
        events = [{"s": event["s"], "x": event["x"], "n": event["n"]} for event in EVENTS]
        assert loaded.match(events).pairs() == matcher.match(events).pairs()


def test_a_loaded_matcher_is_saved_over_its_own_file_while_others_use_the_old_one(path: Path) -> None:
    Matcher(_subscriptions(), DOMAIN).save(path)
    old = Matcher.load(path)
    expected = old.match(EVENTS).pairs()
    changed = Matcher.load(path)
    changed.remove(["id11"])
    changed.save(path)
    assert old.match(EVENTS).pairs() == expected
    assert Matcher.load(path).match(EVENTS).pairs() == changed.match(EVENTS).pairs() != expected


def test_a_matcher_that_changes_meanwhile_is_saved_as_it_was_at_one_moment(path: Path) -> None:
    """Changes swap all of the table at once: a file has one half or the other, never a mixture."""
    left, right = ({f"{side}{number}": "x > 0" for number in range(50)} for side in ("left", "right"))
    matcher = Matcher(left, DOMAIN)
    matcher.match(EVENTS[:1])
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            matcher.replace_all(right)
            matcher.replace_all(left)

    thread = threading.Thread(target=change)
    thread.start()
    seen = []
    for _ in range(10):
        matcher.save(path)
        seen.append(set(Matcher.load(path).match(EVENTS[:1]).of(0)))
    stop.set()
    thread.join()
    assert all(found in (set(left), set(right)) for found in seen)


def test_a_path_is_a_text_or_a_path_and_a_link_stays_a_link(tmp_path: Path) -> None:
    matcher = Matcher(_subscriptions(), DOMAIN)
    matcher.save(str(tmp_path / "real"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    matcher.remove(["id0"])
    matcher.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len(Matcher.load(str(tmp_path / "real"))) == len(FILTERS) - 1


def test_a_file_is_hardly_larger_than_index_ids_and_texts(path: Path) -> None:
    workload = workloads.alerts(subscriptions=20_000, events=500)
    matcher = Matcher(pa.table({"id": np.arange(20_000), "filter": workload.filters}), workload.domain)
    matcher.match(workload.events)
    matcher.save(path)
    needed = matcher.stats().bytes + 8 * 20_000 + workload.filters.nbytes + workload.events.nbytes
    assert needed < path.stat().st_size < 1.05 * needed


# ---------------------------------------------------------------------- one copy


def _arrays_of(value: Any) -> Iterator[Any]:
    """Every array within a value, numpy's and Arrow's."""
    if isinstance(value, np.ndarray | pa.Array):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _arrays_of(part)
    elif isinstance(value, dict):
        yield from _arrays_of(list(value.values()))
    elif is_dataclass(value):
        yield from _arrays_of([getattr(value, field.name) for field in fields(value)])


def test_the_arrays_of_a_loaded_matcher_lie_in_the_mapped_file(path: Path) -> None:
    matcher = Matcher(_subscriptions(), DOMAIN)
    matcher.match(EVENTS)
    matcher.save(path)
    arrays = list(_arrays_of(Matcher.load(path)._version))
    numbers = [one.ctypes.data for one in arrays if isinstance(one, np.ndarray) and one.dtype != object and one.size]
    columns = [one.buffers() for one in arrays if isinstance(one, pa.Array)]
    texts = [buffer.address for buffers in columns for buffer in buffers if buffer is not None and buffer.size]
    assert len(numbers) > 10
    assert len(texts) >= 4  # where ids and filters end, and what they are
    assert max(numbers + texts) - min(numbers + texts) < path.stat().st_size
    assert {address % storage.ALIGNMENT for address in numbers} == {0}


def test_what_a_process_writes_to_its_arrays_stays_its_own(path: Path, whole: bytes) -> None:
    path.write_bytes(whole)
    arrays = [one for one in _arrays_of(Matcher.load(path)._version) if isinstance(one, np.ndarray) and one.size]
    writeable = [array for array in arrays if array.flags.writeable and array.dtype != object]
    for array in writeable:
        array[...] = array[(0,) * array.ndim]
    assert writeable
    assert path.read_bytes() == whole
    Matcher.load(path)


PROGRAM = """
import json, sys, tidings
matcher = tidings.Matcher.load(sys.argv[1])
print(len(matcher.match(json.loads(sys.argv[2]))), flush=True)
sys.stdin.readline()
kib, inside = {}, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        inside = line.rstrip().endswith(sys.argv[1])
    elif inside and words[-1] == "kB":
        kib[words[0][:-1]] = kib.get(words[0][:-1], 0) + int(words[1])
print(kib["Rss"], kib["Shared_Clean"] + kib["Shared_Dirty"], kib["Anonymous"], flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are shared")
def test_two_processes_share_one_copy(path: Path) -> None:
    workload = workloads.alerts(subscriptions=20_000, events=50)
    matcher = Matcher(pa.table({"id": np.arange(20_000), "filter": workload.filters}), workload.domain)
    expected = len(matcher.match(workload.events))
    matcher.save(path)
    with ExitStack() as running:
        command = [sys.executable, "-c", PROGRAM, str(path), json.dumps(workload.events.to_pylist())]
        processes = [
            running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(2)
        ]
        found = [int(process.stdout.readline()) for process in processes if process.stdout]  # both have it loaded now
        told, _ = [process.communicate(b"\n")[0] for process in processes]  # the first while the second waits
    resident, shared, copied = map(int, told.split())
    assert found == [expected, expected]
    assert resident * 1024 > path.stat().st_size * 0.9
    assert (shared, copied) == (resident, 0)


# ---------------------------------------------------------------------- the old file or the new, never a half


@pytest.mark.parametrize("failing", ["_write_blob", "os.fsync", "os.replace"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    failing: str, path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(whole)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((storage, failing) if failing == "_write_blob" else (os, failing.removeprefix("os."))), fail)
    with pytest.raises(SubscriptionError, match=r"cannot save to .*: No space left on device"):
        Matcher({"a": "TRUE"}, DOMAIN).save(path)
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real: Callable[..., Any] = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, real=real, name=name: (calls.append(name), real(*given))[1])
    Matcher({"a": "TRUE"}, DOMAIN).save(path)
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder that has the name


@pytest.mark.parametrize(("name", "message"), [("missing/file", "No such file"), (".", "this is a folder")])
def test_where_no_file_can_be_saving_says_so(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SubscriptionError, match=f"cannot save to .*{message}"):
        Matcher({"a": "TRUE"}, DOMAIN).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("large", [1, 1 << 20], ids=["by threads", "in turn"])
def test_every_flipped_byte_is_refused(large: int, path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_LARGE", large)
    random = Random(large)
    for at in [*range(64), *random.sample(range(64, len(whole)), 150), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(SubscriptionError, match=r"is damaged: .*; copy it again|is no saved matcher"):
            Matcher.load(path)


@pytest.mark.parametrize("kept", [1, 7, 8, 63, 64, 65, 1000, 0.5, -1])
def test_a_file_that_is_cut_short_is_refused(kept: float, path: Path, whole: bytes) -> None:
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(SubscriptionError, match="is damaged: it is cut short"):
        Matcher.load(path)


def _foreign() -> dict[str, bytes]:
    return {
        "text": b"id,filter\n1,price > 5\n" * 10,
        "pickle": pickle.dumps({"a": "price > 5"}),
        "zeros": bytes(1000),
        "translated line ends": storage._MAGIC.replace(b"\r\n", b"\n") + bytes(100),
        "one byte": b"x",
    }


@pytest.mark.parametrize("kind", _foreign())
def test_a_file_that_is_none_of_ours_is_refused(kind: str, path: Path) -> None:
    path.write_bytes(_foreign()[kind])
    with pytest.raises(SubscriptionError, match=r"is no saved matcher; name a file that Matcher\.save wrote"):
        Matcher.load(path)


@pytest.mark.parametrize("path", [5, None, ["file"]])
def test_what_is_no_path_is_no_file(path: Any) -> None:
    for act in (Matcher.load, Matcher({"a": "TRUE"}, DOMAIN).save):
        with pytest.raises(TypeError):
            act(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("none", "there is no file .*none'; Matcher.save writes one"),
        (".", "is no file; name the one"),
        ("pipe", "is no file; name the one"),
        ("empty", "is damaged: it is empty"),
    ):
        with pytest.raises(SubscriptionError, match=message):
            Matcher.load(tmp_path / name)


def test_a_file_with_more_at_its_end_is_refused(path: Path, whole: bytes) -> None:
    path.write_bytes(whole + b"\0")
    with pytest.raises(SubscriptionError, match="it is too long"):
        Matcher.load(path)


def _with_preamble(whole: bytes, **changed: Any) -> bytes:
    """The file with another preamble, whose checksum is right."""
    preamble = storage._PREAMBLE.pack(*storage._Preamble(*storage._PREAMBLE.unpack_from(whole))._replace(**changed))
    return preamble + struct.pack("<I", zlib.crc32(preamble)) + whole[64:]


def _with_header(whole: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with another header, whose checksum is right: forged, not damaged."""
    preamble = storage._Preamble(*storage._PREAMBLE.unpack_from(whole))
    header = json.loads(whole[preamble.header_at :])
    change(header)
    text = json.dumps(header).encode()
    return _with_preamble(
        whole[: preamble.header_at] + text,
        header_checksum=zlib.crc32(text),
        header_size=len(text),
        file_size=preamble.header_at + len(text),
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"format": 5, "version": b"9.1"},
            r"is of format 5, by Tidings 9\.1; .* reads format 4; upgrade Tidings, or make",
        ),
        ({"format": 0}, "was saved by Tidings .* indexes may differ; make the matcher again"),
        ({"version": b"0.0.9"}, r"was saved by Tidings 0\.0\.9, and this is .*; make the matcher again"),
    ],
)
def test_a_file_of_another_format_or_version_is_refused(
    changed: dict[str, Any], message: str, path: Path, whole: bytes
) -> None:
    path.write_bytes(_with_preamble(whole, **changed))
    with pytest.raises(SubscriptionError, match=message):
        Matcher.load(path)


def test_a_version_with_a_long_name_reads_its_own_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidings, "__version__", "1.20.300.dev4000+g0123456789abcdef")
    Matcher({"a": "TRUE"}, DOMAIN).save(path)
    assert len(Matcher.load(path)) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.clear(),
        lambda header: header.pop("nodes"),
        lambda header: header["nodes"].clear(),
        lambda header: header["nodes"].append(["record", 0, 10**9]),
        lambda header: header["nodes"].append(["record", "os.system", 0]),
        lambda header: header["nodes"].append(["record", 0]),
        lambda header: header["nodes"].append(["call", "os.system", "true"]),
        lambda header: header["nodes"].append(["array", 0, "|O", [1], "C", True]),
        lambda header: header["nodes"].append(["array", 0, "<i8", [10**12], "C", True]),
        lambda header: header["nodes"].append(["array", 0, "<i8", [3], "C", True]),
        lambda header: header["nodes"].append(["float", "no number"]),
        lambda header: header["nodes"].append(["decimal", "no number"]),
        lambda header: header["nodes"].append(["dict", 0]),
        lambda header: header["nodes"].append([]),
        lambda header: header["classes"][0].reverse(),
        lambda header: header["classes"][0][1].append("more"),
        lambda header: header["classes"].append(["subprocess.Popen", ["args"]]),
        lambda header: header["blobs"].pop(),
        lambda header: header["blobs"].reverse(),
        lambda header: header["blobs"].insert(0, [64, -64, 0]),
        lambda header: header.update(blobs=5),
    ],
)
def test_a_forged_header_is_refused_and_runs_nothing(
    change: Callable[[dict[str, Any]], Any], path: Path, whole: bytes
) -> None:
    path.write_bytes(_with_header(whole, change))
    with pytest.raises(SubscriptionError, match=r"is whole, but this Tidings cannot read it: .*; make the matcher"):
        Matcher.load(path)


def test_loading_leaves_the_collection_of_garbage_as_it_was(path: Path, whole: bytes) -> None:
    for content in (whole, whole[:-1] + b"?", whole[:64]):
        path.write_bytes(content)
        with suppress(SubscriptionError):
            Matcher.load(path)
        assert gc.isenabled()


def test_machines_of_the_other_byte_order_are_told(path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(whole)
    monkeypatch.setattr(sys, "byteorder", "big")
    for refused in (lambda: Matcher.load(path), lambda: Matcher({"a": "TRUE"}, DOMAIN).save(path)):
        with pytest.raises(SubscriptionError, match="little-endian"):
            refused()
