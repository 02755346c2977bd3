"""HTTP whose heads have a bound: uvicorn's parser would collect the headers of a request as long as they come."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 1 << 16  # bytes of a request's first line and headers


class BoundedHeads(HttpToolsProtocol):
    """Closes a connection whose head goes on beyond the bound, before anything is made of it."""

    without_end = 0  # bytes since a head ended or a body went on

    def data_received(self, data: bytes) -> None:
        """Count, and parse; the two below have come in between where there was an end."""
        self.without_end += len(data)
        super().data_received(data)
        if self.without_end > MOST_HEAD:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self.without_end = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A body goes on; its size is the guard's business."""
        self.without_end = 0
        super().on_body(body)
