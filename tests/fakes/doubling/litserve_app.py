"""Doubling behind LitServe."""

import litserve as ls
from doubling import MOST_AT_ONCE, WAIT_SECONDS, work


class Doubling(ls.LitAPI):
    """Doubles integers."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request: dict[str, int]) -> int:
        """Read a request."""
        return request["input"]

    def predict(self, x: list[int]) -> list[int]:
        """Answer a batch."""
        work(len(x))
        return [2 * number for number in x]

    def encode_response(self, output: int) -> dict[str, int]:
        """Write an answer."""
        return {"output": output}


if __name__ == "__main__":
    api = Doubling(max_batch_size=MOST_AT_ONCE, batch_timeout=WAIT_SECONDS)
    server = ls.LitServer(api, accelerator="cpu")
    server.run(port=8000)
