"""What pulling and streaming share: where notifications are found, and that both end when the service stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from tidings.service.gateway.gateway_metrics import Metrics
from tidings.service.gateway.gateway_settings import Settings
from tidings.service.gateway.known_subscriptions import KnownSubscriptions
from tidings.service.gateway.waiting_notifications import Mailboxes
from tidings.store.mailboxes.deliveries import Deliveries


class HandingOver:
    """Hands over what waits."""

    def __init__(
        self, subscriptions: KnownSubscriptions, mailboxes: Mailboxes, deliveries: Deliveries, metrics: Metrics,
        settings: Settings, executor: Executor,
    ) -> None:  # fmt: skip
        self._subscriptions = subscriptions
        self._mailboxes = mailboxes
        self._deliveries = deliveries
        self._metrics = metrics
        self._settings = settings
        self._executor = executor
        self.closing = False

    def close(self) -> None:
        """Let requests that wait end: the service stops."""
        self.closing = True
        self._mailboxes.nudge_all()

    async def _do(self, work: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *values)
