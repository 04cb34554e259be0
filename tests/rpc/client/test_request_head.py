import pytest
from hpack import Decoder
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.rpc.client.request_head import HEADS_MAX, RequestHeads, timeout_field
from fairlead.rpc.head import TIMEOUT_S_MAX, request_head, timeout_seconds
from fairlead.rpc.head_cache import HeadCache
from fairlead.rpc.header_block import HeaderDecoder, list_bytes

LIST_BYTES_MAX = 32_768


def fields(block: bytes) -> list[tuple[bytes, bytes]]:
    return HeaderDecoder(list_bytes_max=LIST_BYTES_MAX).decode(block)


@given(st.floats(0, 10_000_000))
@example(0.0)
@example(1e-9)
@example(0.1)
@example(99.9999999)
@example(100.0)
@example(99_999.9999)
@example(100_000.0)
def test_a_timeout_is_exact_to_its_unit_and_never_rounded_up(timeout_s: float) -> None:
    ((name, value),) = fields(timeout_field(timeout_s))
    assert name == b"grpc-timeout"
    read_s = timeout_seconds(value)
    # A float has no more than 53 bits: the last of them is no rounding of ours.
    assert read_s <= timeout_s * (1 + 1e-15)
    assert read_s >= timeout_s - max(1e-9, timeout_s * 1e-5)


def test_a_very_long_timeout_is_cut() -> None:
    ((_, value),) = fields(timeout_field(1e15))
    assert timeout_seconds(value) == TIMEOUT_S_MAX


def test_a_head_is_valid_http2_and_no_smaller_than_it_says() -> None:
    metadata = (("a", "1"), ("b-bin", b"\x00\xff"))
    block, size = RequestHeads("example.com:7233", is_encrypted=True).head("/s/M", metadata)
    decoded = fields(block + timeout_field(1.5))
    head = request_head(decoded, list_bytes_max=LIST_BYTES_MAX)
    assert (head.refusal, head.path, head.timeout_s) == (None, "/s/M", 1.5)
    assert (head.metadata["a"], head.binary_metadata["b-bin"]) == ("1", b"\x00\xff")
    assert dict(decoded)[b":scheme"] == b"https"
    assert dict(decoded)[b":authority"] == b"example.com:7233"
    assert list_bytes(decoded) <= size
    # Another decoder reads the same, and keeps nothing for later blocks.
    theirs = Decoder()
    assert [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)] == decoded[:-1]
    assert not theirs.header_table.dynamic_entries


def test_heads_are_encoded_once_and_their_number_is_bounded() -> None:
    heads = RequestHeads("a", is_encrypted=False)
    assert heads.head("/s/M")[0] is heads.head("/s/M")[0]
    for number in range(2 * HEADS_MAX):
        heads.head(f"/s/{number}")
    assert len(heads._heads) <= HEADS_MAX


@given(st.lists(st.floats(0.001, 1_000_000), min_size=2, max_size=5), st.booleans())
def test_a_server_finds_a_cached_head_with_any_timeout(timeouts_s: list[float], has_metadata: bool) -> None:
    cache = HeadCache(list_bytes_max=LIST_BYTES_MAX, decoded_bytes_max=LIST_BYTES_MAX)
    prefix, _ = RequestHeads("a", is_encrypted=False).head("/s/M", (("k", "v"),) if has_metadata else ())
    first = prefix + timeout_field(timeouts_s[0])
    decoded, is_stable = cache.decode(first)
    assert cache.find(first) == (None, None)
    cache.head(first, decoded, is_stable=is_stable)
    for timeout_s in timeouts_s:
        block = prefix + timeout_field(timeout_s)
        head, found_s = cache.find(block)
        expected = request_head(fields(block), list_bytes_max=LIST_BYTES_MAX)
        assert head is not None
        assert (head.path, head.metadata, found_s) == (expected.path, expected.metadata, expected.timeout_s)
    head, found_s = cache.find(prefix)
    assert head is not None
    assert (head.timeout_s, found_s) == (None, None)


@pytest.mark.parametrize("tail", [b"\x00\x0cgrpc-timeout\x021x", b"\x00\x0cgrpc-timeout\x05", b"\x00\x0cgrpc-timeout"])
def test_a_tail_that_is_no_timeout_is_not_taken_for_one(tail: bytes) -> None:
    cache = HeadCache(list_bytes_max=LIST_BYTES_MAX, decoded_bytes_max=LIST_BYTES_MAX)
    prefix, _ = RequestHeads("a", is_encrypted=False).head("/s/M")
    decoded, is_stable = cache.decode(prefix)
    cache.head(prefix, decoded, is_stable=is_stable)
    assert cache.find(prefix + tail) == (None, None)
