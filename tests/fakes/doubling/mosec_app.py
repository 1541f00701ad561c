"""Doubling behind mosec."""

from doubling import MOST_AT_ONCE, WAIT_SECONDS, work
from mosec import Server, Worker


class Doubling(Worker):
    """Doubles integers."""

    def deserialize(self, data: bytes) -> int:
        """Read a request."""
        return int(data)

    def forward(self, data: list[int]) -> list[int]:
        """Answer a batch."""
        work(len(data))
        return [2 * number for number in data]

    def serialize(self, data: int) -> bytes:
        """Write an answer."""
        return b"%d" % data


if __name__ == "__main__":
    server = Server()
    server.append_worker(Doubling, num=1, max_batch_size=MOST_AT_ONCE, max_wait_time=round(WAIT_SECONDS * 1000))
    server.run()
