"""How requests reach the scheduler and tokens leave it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minisgl.message import (
    BaseBackendMsg,
    BaseTokenizerMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
)
from minisgl.utils import (
    ZmqPubQueue,
    ZmqPullQueue,
    ZmqPushQueue,
    ZmqSubQueue,
    init_logger,
)

if TYPE_CHECKING:
    from minisgl.scheduler.config import SchedulerConfig

logger = init_logger(__name__)


class SchedulerIOMixin:
    """Messages in, tokens out; how is chosen when it is made.

    receive_msg(blocking=False): the messages that have come in, on every rank
        the same ones in the same call. blocking: nothing is left to compute, so
        wait for the first; a list cannot wait.
    send_result(reply): pass on the tokens of a step, and what else a tokenizer
        has to know; a list of BaseTokenizerMsg, offline of DetokenizeMsg.
    inbox, outbox: offline only: put messages in, find tokens. A subclass may
        take these as they come, in offline_send_result.

    config: what is read are offline_mode, tp_info and the addresses.
    tp_cpu_group: a process group of all ranks that takes CPU tensors; None
        means the default one. Not used by a single rank.

    Raises:
        FileNotFoundError: nobody has made the folder of the addresses.
        TimeoutError: rank 0 waited for the others in vain.
    """

    receive_msg: Callable[..., list[BaseBackendMsg]]
    send_result: Callable[[list[Any]], None]
    inbox: list[BaseBackendMsg]
    outbox: list[DetokenizeMsg]
    _inbound: ZmqPullQueue[BaseBackendMsg] | ZmqSubQueue[BaseBackendMsg]

    def __init__(
        self, config: SchedulerConfig, tp_cpu_group: dist.ProcessGroup | None
    ) -> None:
        self.tp_cpu_group, self._ranks = tp_cpu_group, config.tp_info.size
        self._queues: list[Any] = []
        self._created: list[str] = []
        if config.offline_mode:
            self.inbox, self.outbox = [], []
            self.receive_msg = self.offline_receive_msg
            self.send_result = self.offline_send_result
            return
        if not config.socket_dir.is_dir():
            raise FileNotFoundError(
                f"the folder {config.socket_dir} is not there; "
                "make_socket_dir(config) has to come first"
            )
        if config.tp_info.is_primary():
            self._open_rank0(config)
        else:
            self._open_rank1(config)

    def _open_rank0(self, config: SchedulerConfig) -> None:
        requests = config.zmq_backend_addr
        tokens = config.zmq_detokenizer_addr
        link = config.backend_create_detokenizer_link
        self._inbound = ZmqPullQueue(requests, True, BaseBackendMsg.decoder)
        self._outbound = ZmqPushQueue(tokens, link, BaseTokenizerMsg.encoder)
        self._queues = [self._inbound, self._outbound]
        self._created = [requests, tokens] if link else [requests]
        self.receive_msg = self._recv_msg_single_rank
        self.send_result = self._reply_tokenizer_rank0
        if self._ranks > 1:
            ranks = config.zmq_scheduler_broadcast_addr
            self._to_ranks = ZmqPubQueue(ranks, True, BaseBackendMsg.encoder)
            self._queues.append(self._to_ranks)
            self._created.append(ranks)
            self._to_ranks.wait_for_subscribers(self._ranks - 1)
            self.receive_msg = self._recv_msg_multi_rank0

    def _open_rank1(self, config: SchedulerConfig) -> None:
        ranks = config.zmq_scheduler_broadcast_addr
        self._inbound = ZmqSubQueue(ranks, False, BaseBackendMsg.decoder)
        self._queues = [self._inbound]
        self.receive_msg = self._recv_msg_multi_rank1
        self.send_result = self._reply_tokenizer_rank1

    def run_when_idle(self) -> None:
        """Called right before this process waits for a message."""

    def sync_all_ranks(self) -> None:
        """Wait until all ranks have come here."""
        if self._ranks > 1:
            dist.barrier(group=self.tp_cpu_group)

    def close_queues(self) -> None:
        """Send what is still to be sent, then remove the own addresses."""
        for queue in self._queues:
            queue.stop()
        for addr in self._created:  # ZeroMQ leaves the file of a socket
            Path(addr.removeprefix("ipc://")).unlink(missing_ok=True)

    def offline_receive_msg(
        self, blocking: bool = False
    ) -> list[BaseBackendMsg]:
        messages, self.inbox = self.inbox, []
        return messages

    def offline_send_result(self, reply: list[DetokenizeMsg]) -> None:
        self.outbox.extend(reply)

    def _recv_msg_single_rank(
        self, blocking: bool = False
    ) -> list[BaseBackendMsg]:
        """All that is here; with `blocking`, first wait for one."""
        first = [self._wait()] if blocking else []
        return self._decode(first + self._take_waiting())

    def _recv_msg_multi_rank0(
        self, blocking: bool = False
    ) -> list[BaseBackendMsg]:
        """The same, and every other rank is given the same bytes.

        With `blocking` the first message is passed on at once, for the others
        wait for it. Then, in every call, rank 0 broadcasts how many more there
        are (int64 [], over the CPU group) and passes these on.
        """
        first = [self._wait()] if blocking else []
        for raw in first:
            self._to_ranks.put_raw(raw)
        more = self._take_waiting()
        self._agree(len(more))
        for raw in more:
            self._to_ranks.put_raw(raw)
        return self._decode(first + more)

    def _recv_msg_multi_rank1(
        self, blocking: bool = False
    ) -> list[BaseBackendMsg]:
        """What rank 0 passes on in its own call, in the same order."""
        first = [self._wait()] if blocking else []
        count = self._agree(0)
        more = [self._inbound.get_raw() for _ in range(count)]
        return self._decode(first + more)

    def _agree(self, count: int) -> int:
        """Rank 0's count, on all ranks."""
        shared = torch.tensor(count)
        dist.broadcast(shared, group=self.tp_cpu_group, group_src=0)
        return int(shared)

    def _wait(self) -> bytes:
        """The next message as it came."""
        if self._inbound.empty():
            self.run_when_idle()
        return self._inbound.get_raw()

    def _take_waiting(self) -> list[bytes]:
        """The messages that are here, as they came."""
        found = []
        while not self._inbound.empty():
            found.append(self._inbound.get_raw())
        return found

    def _decode(self, raws: list[bytes]) -> list[BaseBackendMsg]:
        """The messages; what is none is left out, by every rank alike."""
        messages = []
        for raw in raws:
            try:
                messages.append(self._inbound.decode(raw))
            except ValueError as error:
                logger.warning(f"a message is left out: {error}")
        return messages

    def _reply_tokenizer_rank0(self, reply: list[BaseTokenizerMsg]) -> None:
        """One message a step, however many tokens it has."""
        if len(reply) == 1:
            self._outbound.put(reply[0])
        elif reply:
            self._outbound.put(BatchTokenizerMsg([*reply]))

    def _reply_tokenizer_rank1(self, reply: list[BaseTokenizerMsg]) -> None:
        """Nothing: all ranks have the same tokens, and rank 0 sends them."""
