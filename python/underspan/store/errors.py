"""Errors as ClickHouse's clients know them: a code, a name, a text, an HTTP status."""

from __future__ import annotations

import re
from enum import IntEnum


class Code(IntEnum):
    """ClickHouse's numbers and names of the errors that this host raises itself."""

    UNEXPECTED_END_OF_FILE = 3
    BAD_ARGUMENTS = 36
    CHECKSUM_DOESNT_MATCH = 40
    NOT_IMPLEMENTED = 48
    SYNTAX_ERROR = 62
    UNKNOWN_COMPRESSION_METHOD = 89
    INCORRECT_DATA = 117
    TOO_LARGE_STRING_SIZE = 131
    ABORTED = 236
    CANNOT_DECOMPRESS = 271
    SYSTEM_ERROR = 425
    AUTHENTICATION_FAILED = 516
    STD_EXCEPTION = 1001


# The statuses ClickHouse's HTTP handler gives; any other code is a 500.
_STATUS = {
    **dict.fromkeys((6, 26, 27, 32, 33, 36, 38, 40, 41, 43, 44, 53, 62, 72, 117, 271, 457), 400),
    **dict.fromkeys((3, 89), 400),
    516: 403,
    **dict.fromkeys((46, 47, 50, 56, 60, 63, 73, 81, 115), 404),
    159: 408,
    131: 413,
    48: 501,
    **dict.fromkeys((202, 236, 241), 503),
}

_CODE = re.compile(r"Code: (\d+)\. DB::\w*Exception: ")
_WRAPPED_END = re.compile(r"(?: \(version [^)]*\))?\. ?\([A-Z0-9_]+\)\s*$")


class StoreError(Exception):
    """What a client is told when a request fails."""

    def __init__(self, code: int, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.code = int(code)
        self.text = text
        self.status = status or _STATUS.get(code, 500)

    @classmethod
    def own(cls, code: Code, text: str, status: int | None = None) -> StoreError:
        """An error of this host, worded as ClickHouse words its own."""
        return cls(code, f"Code: {code:d}. DB::Exception: {text} ({code.name})", status)

    @classmethod
    def of_engine(cls, error: Exception) -> StoreError:
        """An error of the engine, whose text starts with its code."""
        text = str(error).strip()
        first = _CODE.search(text)
        if first is None:
            return cls(1002, f"Code: 1002. DB::Exception: {text} (UNKNOWN_EXCEPTION)")
        text = text[first.start() :]
        # Some errors are wrapped once or twice more, with the same code.
        head = first.group()
        while text.startswith(head + head):
            text = _WRAPPED_END.sub("", text[len(head) :])
        return cls(int(first.group(1)), text)
