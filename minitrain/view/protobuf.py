"""The few parts of Protocol Buffers' wire format that a Chakra trace is made of.

These forty lines replace a dependency on a library; the tests read with that library what is written here.
Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """Return a whole number, 0 or more, seven bits a byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """Return a field that is a whole number; 0 is left out, as the format allows."""
    return present(field, value) if value else b""


def present(field: int, value: int) -> bytes:
    """Return a field that is a whole number, also if it is 0, as the members of a oneof must be written."""
    return varint(field << 3 | _VARINT) + varint(value)


def data(field: int, value: bytes) -> bytes:
    """Return a field that is bytes or a message."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """Return a field that is text."""
    return data(field, value.encode(errors="backslashreplace"))


def numbers(field: int, values: Iterable[int]) -> bytes:
    """Return a repeated field of whole numbers, packed; nothing if there is none."""
    packed = b"".join(map(varint, values))
    return data(field, packed) if packed else b""


def delimited(message: bytes) -> bytes:
    """Return a message after its length, the form of a file of several messages."""
    return varint(len(message)) + message
