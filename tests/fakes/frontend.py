"""The queues of a server without anything behind them."""

import asyncio


class Frontend:
    """Takes what is asked; tests put the replies into the queues."""

    def __init__(self):
        self.ack_map, self.asked, self.released = {}, [], []

    def new_user(self, replies):
        uid = len(self.ack_map)
        self.ack_map[uid] = replies
        return uid

    async def send_one(self, msg):
        self.asked.append(msg.uid)

    def release(self, uids):
        self.released += uids

    async def begin(self, made, replies):
        """Begin a generation, these being there at once; returns its queue."""
        begun = asyncio.create_task(made.begin())
        await asyncio.sleep(0)  # until it has asked
        queue = self.ack_map[0]
        for reply in replies:
            queue.put_nowait(reply)
        await begun
        return queue
