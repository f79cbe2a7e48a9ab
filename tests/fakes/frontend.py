"""The queues of a server without anything behind them."""


class Frontend:
    """Takes what is asked, and has what `answers` puts in as replies."""

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
