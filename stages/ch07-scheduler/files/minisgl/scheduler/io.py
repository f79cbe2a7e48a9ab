"""How requests reach the scheduler and tokens leave it."""

from __future__ import annotations

from minisgl.message import BaseBackendMsg, DetokenizeMsg


class SchedulerIOMixin:
    """Two lists: put messages into `inbox`, find tokens in `outbox`."""

    def __init__(self) -> None:
        self.inbox: list[BaseBackendMsg] = []
        self.outbox: list[DetokenizeMsg] = []

    def receive_msg(self, blocking: bool = False) -> list[BaseBackendMsg]:
        """Messages that have come in.

        blocking: nothing is left to compute, so waiting for one would be right;
            a list cannot wait.
        """
        return self.offline_receive_msg(blocking)

    def send_result(self, reply: list[DetokenizeMsg]) -> None:
        """Pass on the tokens of a step."""
        self.offline_send_result(reply)

    def offline_receive_msg(
        self, blocking: bool = False
    ) -> list[BaseBackendMsg]:
        messages, self.inbox = self.inbox, []
        return messages

    def offline_send_result(self, reply: list[DetokenizeMsg]) -> None:
        self.outbox.extend(reply)
