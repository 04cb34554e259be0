"""Varints, protobuf's encoding of numbers, for messages that are assembled from encoded parts."""

_SEVEN_BITS = 0x7F
_MORE_FOLLOWS = 0x80


def varint(value: int) -> bytes:
    """Encode a number that is not negative: seven bits a byte, the lowest first."""
    if value <= _SEVEN_BITS:
        return value.to_bytes()
    encoded = bytearray()
    while value > _SEVEN_BITS:
        encoded.append(value & _SEVEN_BITS | _MORE_FOLLOWS)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
