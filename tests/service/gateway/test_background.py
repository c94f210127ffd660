"""Work in the background goes on, whatever goes wrong in it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tidings.errors import TidingsError
from tidings.service.gateway.background import Background


@pytest.mark.parametrize("error", [TidingsError("a store"), OSError("a disk"), KeyError("our own mistake")])
def test_a_failure_is_told_and_the_work_is_done_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    done = []

    async def work() -> None:
        done.append(1)
        if len(done) < 3:
            raise error

    async def run() -> None:
        background = Background("the work", 0.001, work)
        background.start()
        async with asyncio.timeout(5):
            while len(done) < 4:
                await asyncio.sleep(0.001)
        await background.stop()
        seen = len(done)
        await asyncio.sleep(0.01)
        assert len(done) == seen

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert sum("the work" in record.getMessage() for record in caplog.records) == 2
