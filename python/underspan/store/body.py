"""Request bodies: chunked or sized, compressed or plain, never larger than the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import BinaryIO

from .compression import decode, decode_blocks
from .errors import Code, StoreError

_PIECE = 1 << 18


class Body:
    """The body of one request, read once."""

    def __init__(self, stream: BinaryIO, headers: Mapping[str, str], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
        length = headers.get("Content-Length", "0").strip()
        if not length.isascii() or not length.isdigit():
            raise StoreError.own(Code.BAD_ARGUMENTS, f"Content-Length '{length}' is not a number")
        self._length = int(length)
        self._encoding = headers.get("Content-Encoding", "").strip().lower()
        # Whether the stream stands behind the body, so that the connection can be kept.
        self.finished = not self._chunked and self._length == 0

    def read(self, blocks: bool) -> Iterator[bytes]:
        """The decoded body. `blocks`: the client said `decompress=1`."""
        pieces = self._raw()
        if self._encoding not in ("", "identity"):
            pieces = decode(pieces, self._encoding)
        if blocks:
            pieces = decode_blocks(pieces)
        total = 0
        for piece in pieces:
            total += len(piece)
            if total > self._limit:
                raise StoreError.own(
                    Code.TOO_LARGE_STRING_SIZE,
                    f"The body is larger than {self._limit} bytes: send smaller batches",
                )
            yield piece

    def drain(self) -> None:
        """Reads and drops what is left, so that a client still sending gets to see the answer."""
        if self.finished:
            return
        left = self._limit
        try:
            for piece in self._raw():
                left -= len(piece)
                if left < 0:
                    return
        except (StoreError, OSError):
            return

    def _raw(self) -> Iterator[bytes]:
        if self._chunked:
            while size := self._chunk_size():
                yield from self._exactly(size)
                if self._stream.readline(3).strip():
                    raise StoreError.own(Code.INCORRECT_DATA, "A chunk is longer than it says")
            while self._stream.readline(8192).strip():
                pass  # trailers
        else:
            length, self._length = self._length, 0
            yield from self._exactly(length)
        self.finished = True

    def _chunk_size(self) -> int:
        line = self._stream.readline(1024).split(b";")[0].strip()
        if not line:
            raise StoreError.own(
                Code.UNEXPECTED_END_OF_FILE, "The body ended before its last chunk"
            )
        try:
            return int(line, 16)
        except ValueError:
            raise StoreError.own(Code.INCORRECT_DATA, "A chunk has no size") from None

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._stream.read(min(size, _PIECE))
            if not piece:
                raise StoreError.own(Code.UNEXPECTED_END_OF_FILE, "The body ended too early")
            size -= len(piece)
            yield piece


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a `multipart/form-data` body: `query` and `param_*`."""
    head = b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n"
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise StoreError.own(
            Code.BAD_ARGUMENTS, "The multipart body has no parts: check its boundary"
        )
    fields = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="Content-Disposition")
        if part.get_filename() is not None or name is None:
            raise StoreError.own(
                Code.NOT_IMPLEMENTED,
                "External tables are not spoken here: insert into a table first",
            )
        fields[str(name)] = part.get_payload(decode=True).decode("utf-8", "surrogateescape")
    return fields
