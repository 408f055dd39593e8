"""What a request asks for: its parameters sorted into statement, settings and the rest."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from .errors import Code, StoreError

# Parameters of the interface itself. Any other one is a setting. What is not read anywhere is
# accepted and has no effect: there are no sessions, quotas or roles, and results come whole.
_TRANSPORT = frozenset(
    "query database default_format compress decompress user password query_id quota_key session_id"
    " session_timeout session_check close_session role buffer_size wait_end_of_query"
    " client_protocol_version stacktrace".split()
)
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


@dataclass
class Parameters:
    """The parameters of a request, from its URL and, for a form, from its body."""

    transport: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    # Values for `{name:Type}` in the statement, in ClickHouse's escaped text.
    params: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_url(cls, query_string: str) -> Parameters:
        parameters = cls()
        pairs = parse_qsl(query_string, keep_blank_values=True, errors="surrogateescape")
        parameters.add(dict(pairs))
        return parameters

    def add(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if name.startswith("param_"):
                self.params[name.removeprefix("param_")] = value
            elif name in _TRANSPORT:
                self.transport[name] = value
            elif _SETTING_NAME.match(name):
                self.settings[name] = value
            else:
                raise StoreError.own(
                    Code.BAD_ARGUMENTS, f"'{name}' cannot be the name of a setting"
                )

    def get(self, name: str) -> str:
        return self.transport.get(name, "")

    def flag(self, name: str) -> bool:
        return self.get(name).lower() in ("1", "true")


def authorise(token: str, headers: Mapping[str, str], parameters: Parameters) -> None:
    """Lets a request through that carries the token as its password. Any user name will do."""
    given = _password(headers, parameters)
    if given is None:
        text = "Authentication failed: send this store's token (file 'token' in its data folder)"
        raise StoreError.own(Code.AUTHENTICATION_FAILED, f"{text} as the password", 401)
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        text = "Authentication failed: wrong token; this store's is in the file 'token'"
        raise StoreError.own(Code.AUTHENTICATION_FAILED, f"{text} of its data folder")


def _password(headers: Mapping[str, str], parameters: Parameters) -> str | None:
    if "X-ClickHouse-Key" in headers:
        return headers["X-ClickHouse-Key"]
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            user_password = base64.b64decode(value, validate=True).decode("utf-8", "replace")
        except binascii.Error:
            return ""
        return user_password.partition(":")[2]
    return parameters.transport.get("password")
