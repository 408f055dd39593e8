"""The engine's errors, as a client is told them."""

from __future__ import annotations

import pytest

from underspan.store.errors import Code, StoreError

PLAIN = "Code: 60. DB::Exception: Unknown table. (UNKNOWN_TABLE)"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"Failed to create connection: {PLAIN}\n",
        f"Code: 60. DB::Exception: {PLAIN} (version 26.5.1.1). (UNKNOWN_TABLE)",
        "Code: 60. DB::Exception: Code: 60. DB::Exception: "
        f"{PLAIN} (version 26.5.1.1). (UNKNOWN_TABLE) (version 26.5.1.1). (UNKNOWN_TABLE)",
    ],
)
def test_the_code_comes_once(text):
    error = StoreError.of_engine(RuntimeError(text))
    assert (error.code, error.status, error.text) == (60, 404, PLAIN)


def test_an_error_without_a_code():
    error = StoreError.of_engine(RuntimeError("out of luck"))
    assert (error.code, error.status) == (1002, 500)
    assert error.text == "Code: 1002. DB::Exception: out of luck (UNKNOWN_EXCEPTION)"


def test_own_errors_read_alike():
    error = StoreError.own(Code.ABORTED, "Going away")
    assert (error.code, error.status) == (236, 503)
    assert error.text == "Code: 236. DB::Exception: Going away (ABORTED)"
