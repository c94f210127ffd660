"""Jobs of the driver: tenants take turns."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'tidings[spark]'")

from tests.waiting import until

from tidings.service.driver import gateway_jobs
from tidings.service.driver.gateway_jobs import AT_ONCE, Jobs


class Held:
    """Jobs that begin when they are begun, and end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Semaphore(0)

    def __call__(self, context: Any, job: Any) -> dict[str, Any]:
        self.begun.append(job.id)
        assert self.may_end.acquire(timeout=300)
        return {}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(gateway_jobs, "_KINDS", {"replay": made, "backtest": made})
    return made


def job(tenant: str, number: int) -> Any:
    return SimpleNamespace(id=f"{tenant}{number}", tenant=tenant, kind="replay", closed=None)


def jobs_of(open_jobs: list[Any], folder: Path) -> Jobs:
    by_id = {one.id: one for one in open_jobs}
    catalogue = SimpleNamespace(open_jobs=lambda: open_jobs, job=by_id.get)
    context: Any = SimpleNamespace(catalogue=catalogue, data=SimpleNamespace(answer=lambda id_: folder / id_))
    return Jobs(context)


def test_many_jobs_of_one_tenant_leave_a_thread_for_another(tmp_path: Path, held: Held) -> None:
    open_jobs = [job("a", number) for number in range(60)]
    jobs = jobs_of(open_jobs, tmp_path)
    jobs.look()
    until(lambda: len(held.begun) == AT_ONCE - 1)
    late = job("b", 0)
    open_jobs.append(late)
    jobs._context.catalogue.job = {one.id: one for one in open_jobs}.get
    jobs.look()
    until(lambda: "b0" in held.begun)
    assert held.begun == ["a0", "b0"]
    held.may_end.release(len(open_jobs))
    jobs.stop()


def test_tenants_with_jobs_take_turns(tmp_path: Path, held: Held) -> None:
    open_jobs = [job(tenant, number) for tenant in "abc" for number in range(3)]
    jobs = jobs_of(open_jobs, tmp_path)
    held.may_end.release(len(open_jobs))
    until(lambda: jobs.look() or len(held.begun) == len(open_jobs))
    assert {one[0] for one in held.begun[:3]} == {"a", "b", "c"}
    jobs.stop()
