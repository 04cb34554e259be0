"""Our decoder of header blocks gives the same results as the `hpack` package."""

import secrets

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from fairlead.rpc import header_block
from fairlead.rpc.frames import ConnectionFault, ErrorCode
from fairlead.rpc.header_block import HeaderDecoder, literal

LIST_BYTES_MAX = 65_536

names = st.sampled_from([":path", ":method", "content-type", "te", "x", "grpc-timeout", "y" * 200])
values = st.one_of(st.sampled_from(["POST", "/a/B", "", "trailers"]), st.text(alphabet="abz019-/", max_size=300))
headers = st.lists(st.tuples(names, values, st.booleans()), max_size=12)
pieces = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"\x82", b"\xbe", b"\xc0", b"\x20", b"\x3f\xe1\x1f", b"\x3f\xe2\x1f", b"\x40\x01a\x01b", b"\x7f\x80\x01"]
    ),
)


def plain(fields: object) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in fields]  # type: ignore[attr-defined]


@given(st.lists(st.tuples(headers, st.booleans(), st.sampled_from([None, 0, 64, 500, 4_096])), max_size=12))
def test_blocks_of_an_encoder_are_decoded_as_the_library_does(
    blocks: list[tuple[list[tuple[str, str, bool]], bool, int | None]],
) -> None:
    encoder, theirs, ours = Encoder(), Decoder(LIST_BYTES_MAX), HeaderDecoder(list_bytes_max=LIST_BYTES_MAX)
    for fields, is_huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = encoder.encode(fields, huffman=is_huffman)
        assert ours.decode(block) == plain(theirs.decode(block, raw=True))


@given(st.lists(st.lists(pieces, max_size=8).map(b"".join), max_size=6))
def test_any_bytes_are_decoded_or_refused_as_the_library_does(blocks: list[bytes]) -> None:
    theirs, ours = Decoder(LIST_BYTES_MAX), HeaderDecoder(list_bytes_max=LIST_BYTES_MAX)
    for block in blocks:
        try:
            expected = plain(theirs.decode(block, raw=True))
        except HPACKError:
            with pytest.raises(ConnectionFault) as raised:
                ours.decode(block)
            assert raised.value.code is ErrorCode.COMPRESSION_ERROR
            return
        assert ours.decode(block) == expected


@given(headers)
def test_a_block_that_does_not_change_the_table_decodes_to_the_same_again(fields: list[tuple[str, str, bool]]) -> None:
    encoder, ours = Encoder(), HeaderDecoder(list_bytes_max=LIST_BYTES_MAX)
    ours.decode(encoder.encode(fields))
    block = encoder.encode(fields)
    generation = ours.generation
    first = ours.decode(block)
    if ours.generation == generation:
        assert ours.decode(block) == first


def test_every_change_of_the_header_table_begins_a_new_generation() -> None:
    ours = HeaderDecoder(list_bytes_max=LIST_BYTES_MAX)
    for block in (b"\x40\x01a\x01b", b"\x20", b"\x3f\xe1\x1f"):
        generation = ours.generation
        ours.decode(block)
        assert ours.generation != generation
    generation = ours.generation
    ours.decode(b"\x82\x00\x01a\x01b\x10\x01a\x01b")
    assert ours.generation == generation


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20_000)), max_size=4))
def test_literals_are_decoded_by_the_library_and_leave_its_table_empty(fields: list[tuple[bytes, bytes]]) -> None:
    theirs = Decoder(10**6)
    assert plain(theirs.decode(b"".join(literal(*field) for field in fields), raw=True)) == fields
    assert not theirs.header_table.dynamic_entries


def test_a_token_that_comes_with_each_call_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def counted(text: bytes) -> bytes:
        decoded.append(text)
        return decode_huffman(text)

    monkeypatch.setattr(header_block, "decode_huffman", counted)
    token = secrets.token_urlsafe(800)
    encoder, decoder = Encoder(), HeaderDecoder(list_bytes_max=8_192)
    for call in range(3):
        # As SDKs do: the token is not added to the table, and the timeout differs from call to call.
        block = encoder.encode([("authorization", token, True), ("grpc-timeout", f"{call}m")])
        assert decoder.decode(block)[0] == (b"authorization", token.encode())
    assert len([text for text in decoded if len(text) > 128]) == 1


def test_a_string_longer_than_a_token_is_decoded_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(text: bytes) -> bytes:
        lengths.append(len(text))
        return decode_huffman(text)

    monkeypatch.setattr(header_block, "decode_huffman", counted)
    encoder, decoder = Encoder(), HeaderDecoder(list_bytes_max=65_536)
    block = encoder.encode([("x-long", secrets.token_urlsafe(6_000), True)])
    for _ in range(2):
        decoder.decode(block)
    assert len([length for length in lengths if length > 4_096]) == 2
