"""Varints of protobuf's encoding."""

from google.protobuf.wrappers_pb2 import UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.varints import varint


@given(st.integers(1, 2**64 - 1))
def test_a_varint_is_encoded_as_protobuf_does(value: int) -> None:
    tag = b"\x08"
    assert tag + varint(value) == UInt64Value(value=value).SerializeToString()


def test_zero_is_one_byte() -> None:
    assert varint(0) == b"\x00"
