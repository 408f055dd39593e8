"""What must be known of a statement before the engine sees it: is it an INSERT with data behind it?

ClickHouse sends an INSERT's rows after the statement's text, in the body or behind ``FORMAT name``.
The rows are binary, so the statement is cut in front of them; the engine reads them from a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import Code, StoreError

_TOKEN = re.compile(
    rb"""
      (?P<space> \s+ | --[^\n]* | \#[ !][^\n]* | /\*.*?\*/ )
    | (?P<string> '(?:[^'\\]|\\.|'')*' )
    | (?P<name> [A-Za-z_]\w* | `(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*" )
    | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE = b"([{", b")]}"
_TAIL_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*(?:SETTINGS\b[^()]*)?;?\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Insert:
    """An INSERT whose rows follow: ``{target} FROM INFILE … {settings} FORMAT {format}``."""

    target: str
    settings: str
    format: str
    # Where the rows start in the statement's bytes.
    data_start: int

    def reading(self, path: str) -> str:
        """The same INSERT, with its rows in a file."""
        # On a line of its own: the target may end in a comment.
        return f"{self.target}\nFROM INFILE '{path}' {self.settings}\nFORMAT {self.format}"


def _tokens(text: bytes):
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield match


def parse_insert(text: bytes) -> Insert | None:
    """The INSERT that `text` starts with, or None when no rows belong behind the statement."""
    tokens = _tokens(text)
    word = _word(next(tokens, None))
    if word != b"INSERT":
        return None
    depth = 0
    # The table comes first, so that one called `format` or `values` is not taken for a keyword.
    before_table = True
    settings_start = None
    for token in tokens:
        mark, word = token.group(), _word(token)
        if before_table:
            before_table = word in (b"INTO", b"TABLE", b"FUNCTION")
            depth += mark in _OPEN
            continue
        if token.lastgroup == "mark":
            depth += (mark in _OPEN) - (mark in _CLOSE)
        if depth or text[token.start() - 1 : token.start()] == b".":
            continue
        if word in (b"SELECT", b"WITH", b"FROM", b"WATCH"):
            return None
        if word == b"SETTINGS":
            settings_start = token.start()
        elif word == b"VALUES":
            return _insert(text, token.start(), settings_start, "Values", token.end())
        elif word == b"FORMAT":
            name = next(tokens, None)
            if name is None or name.lastgroup != "name":
                raise StoreError.own(
                    Code.SYNTAX_ERROR, "Syntax error: expected a format after FORMAT"
                )
            end = _skip_line_end(text, name.end())
            return _insert(text, token.start(), settings_start, name.group().decode(), end)
    return None


def _insert(text: bytes, end: int, settings_start: int | None, format: str, data: int) -> Insert:
    target_end = end if settings_start is None else settings_start
    target, settings = utf8(text[:target_end]), utf8(text[target_end:end])
    return Insert(target.rstrip(), settings.strip(), format, data)


def _skip_line_end(text: bytes, start: int) -> int:
    """Rows start behind the format's name and the rest of its line, as in ClickHouse's parser."""
    match = re.compile(rb"[ \t\f]*(?:;[ \t]*)?(?:\r?\n)?").match(text, start)
    return match.end() if match else start


def _word(token: re.Match[bytes] | None) -> bytes:
    return b"" if token is None or token.lastgroup != "name" else token.group().upper()


def utf8(text: bytes) -> str:
    """The statement as text."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise StoreError.own(Code.SYNTAX_ERROR, f"The statement is not UTF-8: {error}") from error


def refuse_several(text: bytes) -> None:
    """Refuses several statements at once, as ClickHouse's HTTP interface does."""
    if b";" not in text:
        return
    ended = False
    for token in _tokens(text):
        if ended and token.group() != b";":
            raise StoreError.own(
                Code.SYNTAX_ERROR,
                "Syntax error: Multi-statements are not allowed: send one at a time",
            )
        ended = ended or token.group() == b";"


def reads_tables(text: bytes) -> bool:
    """Whether the statement asks for what is in tables."""
    words = map(_word, _tokens(text))
    first = next((word for word in words if word), b"")
    return first in (b"SELECT", b"WITH") and b"FROM" in words


def result_format(text: bytes, default: str) -> str:
    """The format the result will be in: the statement's own FORMAT clause, or the default."""
    match = _TAIL_FORMAT.search(text[-500:])
    return match.group(1).decode() if match else default
