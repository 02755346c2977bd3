"""How large a packed file is once unpacked, told before it is: a few kilobytes may hide more than memory holds.

What is past `ROOM` and more than `RATIO` times as large as the file is refused. Logs of ratings shrink to a tenth or a
twentieth; what shrinks to less than a hundredth was made to.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from counterpoise.errors import DataError

RATIO, ROOM = 100, 1 << 28  # bytes
CHUNK = 1 << 20
GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
BLOCK = 1 << 17  # the most bytes that a block of Zstandard holds


def check_unpacked(file: Path) -> None:
    """Raise `DataError` for a file that unpacks to far more than its size. Looks at its first bytes, not its name."""
    with file.open("rb") as stream:
        start = stream.read(4)
        stream.seek(0)
        if start == ZSTANDARD:
            sizes = _zstandard_blocks(stream)
        elif start[:2] == GZIP or start[:2] in ZLIB:
            sizes = _deflated_pieces(stream)
        else:
            return
        check_size(str(file), sizes, file.stat().st_size)


def check_size(name: str, sizes: Iterator[int], packed: int) -> None:
    """Add up the pieces, and stop where they are too much for a file of `packed` bytes."""
    total = 0
    for size in sizes:
        total += size
        if total > max(ROOM, RATIO * packed):
            raise DataError(
                f"{name}: unpacks to more than {RATIO} times its size. If you trust it, write it as plain CSV."
            )


def _deflated_pieces(stream: IO[bytes]) -> Iterator[int]:
    """The sizes of the pieces of gzip or zlib data; what is damaged ends it, and whoever reads the file says so."""
    unpacker, held = zlib.decompressobj(wbits=47), b""
    while held := held or stream.read(CHUNK):
        try:
            yield len(unpacker.decompress(held, CHUNK))
        except zlib.error:
            return
        held = unpacker.unconsumed_tail
        if unpacker.eof:
            held, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=47)


def _zstandard_blocks(stream: IO[bytes]) -> Iterator[int]:
    """At most how many bytes each block holds (RFC 8878), from the headers alone; a damaged one ends it."""
    while (magic := stream.read(4)) == ZSTANDARD or magic[1:] == b"\x2a\x4d\x18":
        if magic != ZSTANDARD:  # a frame to skip
            stream.seek(int.from_bytes(stream.read(4), "little"), 1)
            continue
        descriptor = int.from_bytes(stream.read(1), "little")
        alone, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
        stream.seek((1 - alone) + (0, 1, 2, 4)[descriptor & 3] + (alone, 2, 4, 8)[descriptor >> 6], 1)
        last = 0
        while not last:
            header = stream.read(3)
            if len(header) < 3:
                return
            word = int.from_bytes(header, "little")
            last, kind, size = word & 1, word >> 1 & 3, word >> 3
            yield size if kind < 2 else BLOCK
            stream.seek(1 if kind == 1 else size, 1)
        stream.seek(4 * has_checksum, 1)
