"""What a power cut may leave of the newest files of a checkpoint, which Spark does not sync."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

STATES = ("missing", "empty", "cut", "zeros", "old")  # old: as it was before its last change


def hits(last: int, at_once: int) -> Iterator[dict[str, str]]:
    """Every way to hit up to so many of the newest files, of which `last` is the last batch."""
    newest = (f"offsets/{last}", f"commits/{last}", f"offsets/{last - 1}", f"commits/{last - 1}", "metadata")
    for count in range(at_once + 1):
        for names in combinations(newest, count):
            for states in product(STATES, repeat=count):
                one = dict(zip(names, states, strict=True))
                if not any(state == "old" and name.startswith("commits") for name, state in one.items()):
                    yield one  # what is in a commit never changes


def hit(path: Path, state: str) -> None:
    content = path.read_bytes() if path.exists() else None
    if content is None:
        return  # it was not written yet
    match state:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "zeros":
            path.write_bytes(bytes(len(content)))
        case "old":
            path.write_text(_before(path, content.decode()))
    for checksum in path.parent.glob(f".{path.name}.crc"):
        checksum.unlink()


def _before(path: Path, text: str) -> str:
    """A file as another start had written it: another name of the query, or a batch that was planned shorter."""
    if path.name == "metadata":
        return json.dumps({"id": "00000000-1111-2222-3333-444455556666"})
    *head, offset = text.splitlines()
    before = path.with_name(str(int(path.name) - 1))
    end = json.loads(offset)
    try:
        start = json.loads(before.read_text().splitlines()[-1])["log"]
    except (OSError, ValueError, LookupError):  # it was hit too
        start = 0
    return "\n".join([*head, json.dumps({**end, "log": (start + end["log"]) // 2})])
