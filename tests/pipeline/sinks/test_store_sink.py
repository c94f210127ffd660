"""Tasks stage matches, a commit loads them all at once, an abort leaves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.sinks import store_sink
from tidings.pipeline.sinks.store_sink import NotificationsSink, prepare_staging, staging_directory
from tidings.store.mailboxes.notifications import LOG, Notifications


def rows(matches: dict[int, list[str] | None], version: int = 1, source: str | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "position": pa.array(list(matches), pa.int64()),
        "subscriptions_version": pa.array([version] * len(matches), pa.int64()),
        "subscriptions": pa.array(list(matches.values()), pa.list_(pa.string())),
    }
    return pa.RecordBatch.from_pydict(columns if source is None else columns | {"source": [source] * len(matches)})


@pytest.fixture(params=[1 << 20, 0], ids=["with the result", "in a file"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store_sink, "INLINE_BYTES", request.param)
    prepare_staging(tmp_path / "store", "q")
    return tmp_path / "store"


def writer(store: Path, query: str = "q") -> Any:
    return NotificationsSink({"path": str(store), "query": query}).streamWriter(None, False)  # type: ignore[arg-type]


def staged(store: Path) -> list[Path]:
    return list(staging_directory(store).glob("*.arrow"))


def test_a_commit_loads_what_all_tasks_wrote_and_says_how_far_they_came(store: Path) -> None:
    writes = writer(store)
    messages = [
        writes.write(iter([rows({1: ["a"], 2: []}), rows({3: ["a", "b"], 4: None})])),
        writes.write(iter([rows({9: []})])),
        writes.write(iter([])),
        None,
    ]
    assert not store.exists()
    for _ in range(2):  # and once more, as after a crash
        writes.commit(list(messages), 0)
        with Notifications(store) as opened:
            assert sorted(opened.pairs()) == [(1, "a"), (3, "a"), (3, "b")]
            assert opened.reached("q") == {LOG: 9}
        if messages[0].file is not None:
            assert staged(store) == []
            messages = [writes.write(iter([rows({1: ["a"]})]))]


def test_an_abort_removes_what_was_staged_and_loads_nothing(store: Path) -> None:
    writes = writer(store)
    messages = [writes.write(iter([rows({1: ["a"]})])), None]
    writes.abort(messages, 0)
    assert staged(store) == []
    assert not store.exists()


def test_what_a_crash_left_is_removed_when_the_query_starts_again(store: Path) -> None:
    writer(store).write(iter([rows({1: ["a"]})]))
    prepare_staging(store, "q")
    assert staged(store) == []


def test_an_executor_without_the_drivers_disk_sends_all_with_its_result(store: Path) -> None:
    message = writer(store, query="of another disk").write(iter([rows({1: ["a"]})]))
    assert message.file is None
    assert message.data is not None


def test_positions_count_by_source(store: Path) -> None:
    writes = writer(store)
    parts = [rows({5: ["a"]}, source="t/0"), rows({2: ["a"]}, source="t/1"), rows({4: []}, source="t/0")]
    writes.commit([writes.write(iter(parts))], 0)
    with Notifications(store) as opened:
        assert opened.reached("q") == {"t/0": 5, "t/1": 2}
        assert opened.positions_of("a", source="t/0") == [5]


def test_a_batch_of_two_versions_is_refused(store: Path) -> None:
    writes = writer(store)
    messages = [writes.write(iter([rows({1: ["a"]}, version)])) for version in (1, 2)]
    with pytest.raises(PipelineError, match="events of several versions"):
        writes.commit(messages, 0)
    assert not store.exists()
