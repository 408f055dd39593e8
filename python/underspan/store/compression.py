"""Compression on the wire: HTTP's own (`Content-Encoding`) and ClickHouse's (`compress=1`)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

import lz4.block
import lz4.frame
import zstandard
from clickhouse_cityhash.cityhash import CityHash128

from .errors import Code, StoreError

_DECODERS = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "x-gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
    "lz4": lz4.frame.LZ4FrameDecompressor,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_ENCODERS = {
    "lz4": lz4.frame.compress,
    "zstd": zstandard.ZstdCompressor(level=1).compress,
    "gzip": lambda data: _deflate(data, zlib.MAX_WBITS | 16),
    "deflate": lambda data: _deflate(data, zlib.MAX_WBITS),
}


def _deflate(data: bytes, wbits: int) -> bytes:
    encoder = zlib.compressobj(level=3, wbits=wbits)
    return encoder.compress(data) + encoder.flush()


def decode(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Undoes a `Content-Encoding`, chunk by chunk. Frames may follow one another."""
    new = _DECODERS.get(encoding)
    if new is None:
        raise StoreError.own(
            Code.UNKNOWN_COMPRESSION_METHOD,
            f"Unknown Content-Encoding '{encoding}': use one of {', '.join(_DECODERS)}",
        )
    decoder = None
    try:
        for chunk in chunks:
            while chunk:
                if decoder is None:
                    decoder = new()
                yield decoder.decompress(chunk)
                chunk = b""
                if decoder.eof:
                    chunk, decoder = decoder.unused_data or b"", None
    except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
        message = f"The body is not {encoding}, or is damaged: {error}"
        raise StoreError.own(Code.CANNOT_DECOMPRESS, message) from error
    if decoder is not None:
        raise StoreError.own(
            Code.UNEXPECTED_END_OF_FILE, f"The body ends inside a {encoding} frame"
        )


def accepted_encoding(header: str) -> str | None:
    """The first encoding of an `Accept-Encoding` header that can be given, or None for plain."""
    for item in header.lower().split(","):
        name, _, quality = item.partition(";")
        if name.strip() in _ENCODERS and quality.replace(" ", "") not in ("q=0", "q=0.0"):
            return name.strip()
    return None


def encode(data: bytes, encoding: str) -> bytes:
    """Applies an encoding that `accepted_encoding` named."""
    return _ENCODERS[encoding](data)


# A block of ClickHouse's own format: CityHash128 of what follows, then method, size with this
# header, size when decompressed, and the data.
_CHECKSUM = struct.Struct("<QQ")
_HEADER = struct.Struct("<BII")
_NONE, _LZ4, _ZSTD = 0x02, 0x82, 0x90
_BLOCK = 1 << 20
_LARGEST_BLOCK = 1 << 30


def decode_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Undoes ClickHouse's block compression (`decompress=1`), checking every block's checksum."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while (size := _block_size(buffer)) and len(buffer) >= size:
            yield _decode_block(bytes(buffer[:size]))
            del buffer[:size]
    if buffer:
        raise StoreError.own(Code.UNEXPECTED_END_OF_FILE, "The body ends inside a compressed block")


def _block_size(buffer: bytearray) -> int:
    """The size of the block at the buffer's start, or 0 when its header is not there yet."""
    if len(buffer) < _CHECKSUM.size + _HEADER.size:
        return 0
    _, compressed, plain = _HEADER.unpack_from(buffer, _CHECKSUM.size)
    if not _HEADER.size <= compressed <= _LARGEST_BLOCK or plain > _LARGEST_BLOCK:
        raise StoreError.own(
            Code.CANNOT_DECOMPRESS,
            "The body is not in ClickHouse's compressed format; leave out decompress=1",
        )
    return _CHECKSUM.size + compressed


def _decode_block(block: bytes) -> bytes:
    covered = block[_CHECKSUM.size :]
    if _checksum(covered) != block[: _CHECKSUM.size]:
        raise StoreError.own(
            Code.CHECKSUM_DOESNT_MATCH,
            "Checksum doesn't match: corrupted data in a compressed block",
        )
    method, _, plain = _HEADER.unpack_from(covered)
    data = covered[_HEADER.size :]
    try:
        if method == _LZ4:
            return lz4.block.decompress(data, uncompressed_size=plain)
        if method == _ZSTD:
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=plain)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        message = f"Cannot decompress a block: {error}"
        raise StoreError.own(Code.CANNOT_DECOMPRESS, message) from error
    if method == _NONE:
        return data
    raise StoreError.own(
        Code.UNKNOWN_COMPRESSION_METHOD, f"Unknown compression method 0x{method:02x} in a block"
    )


def encode_blocks(data: bytes) -> bytes:
    """ClickHouse's block compression with LZ4 (`compress=1`)."""
    blocks = bytearray()
    for start in range(0, len(data), _BLOCK):
        plain = data[start : start + _BLOCK]
        packed = lz4.block.compress(plain, store_size=False)
        covered = _HEADER.pack(_LZ4, _HEADER.size + len(packed), len(plain)) + packed
        blocks += _checksum(covered) + covered
    return bytes(blocks)


def _checksum(covered: bytes) -> bytes:
    value = CityHash128(covered)
    return _CHECKSUM.pack(value >> 64, value & 0xFFFF_FFFF_FFFF_FFFF)
