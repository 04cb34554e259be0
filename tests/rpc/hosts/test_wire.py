import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.errors import API_ERRORS, AlreadyExists
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.core.partitions import InvalidVersion, Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import ADD, AddRequest, AddResponse, NewTask, QueueKind, StaleConfig
from fairlead.rpc.hosts.caller import CallLost, Method, Overloaded, UnknownMethod, Unreachable
from fairlead.rpc.hosts.wire import (
    ERROR_DATA_BYTES_MAX,
    ERROR_MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Codec,
    Errors,
    MalformedRequest,
    MalformedResponse,
    MessageTooLarge,
    Unsendable,
)

CONFIG = PartitionConfig(version=7, read=4, write=2)
ADD_REQUEST = AddRequest(
    partition=Partition(TaskQueueId("default", "orders", TaskType.ACTIVITY), 3),
    task=NewTask(priority=3, fairness_key="key", weight=1.5, payload=b"\x00\xff", created_s=1.25),
    kind=QueueKind.STICKY,
    config=CONFIG,
)


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


class Data(msgspec.Struct, frozen=True, array_like=True):
    data: bytes


TEXT = Method("test.Text", Text, Text)
DATA = Method("test.Data", Data, Data)


class OfTwoThings(RetryLater):
    def __init__(self, message: str, hosts: list[str], *, wait_s: float | None) -> None:
        super().__init__(message)
        self.hosts = hosts
        self.wait_s = wait_s


def test_requests_and_responses_are_decoded_as_they_were_encoded() -> None:
    codec = Codec(ADD)
    answer = AddResponse(is_started=True, config=CONFIG)
    assert codec.decode_request(codec.encode(ADD_REQUEST)) == ADD_REQUEST
    assert codec.decode_answer(codec.encode(answer)) == answer


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_a_request_or_raise_fix_request(data: bytes) -> None:
    try:
        request = Codec(ADD).decode_request(data)
    except FixRequest:
        return
    assert isinstance(request, AddRequest)


@given(st.data())
def test_a_damaged_request_raises_no_other_error(data: st.DataObject) -> None:
    encoded = bytearray(Codec(ADD).encode(ADD_REQUEST))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        request = Codec(ADD).decode_request(bytes(encoded))
    except FixRequest:
        return
    assert isinstance(request, AddRequest)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91", b"\x91\x01", b"\x92\xa1a" + b"\x91" * 100_000])
def test_a_malformed_request_is_refused_with_the_name_of_its_method(data: bytes) -> None:
    with pytest.raises(MalformedRequest, match=r"test\.Text"):
        Codec(TEXT).decode_request(data)


def test_a_request_with_impossible_values_is_refused_with_their_own_error() -> None:
    encoded = Codec(ADD).encode(ADD_REQUEST).replace(b"version\x07", b"version\xff")
    with pytest.raises(InvalidVersion, match="-1"):
        Codec(ADD).decode_request(encoded)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x01"])
def test_a_malformed_response_is_blamed_on_the_other_host(data: bytes) -> None:
    with pytest.raises(MalformedResponse, match=r"test\.Text"):
        Codec(TEXT).decode_answer(data)
    with pytest.raises(MalformedResponse, match="-1"):
        Codec(Method("test.Config", Text, PartitionConfig)).decode_answer(
            msgspec.msgpack.encode({"version": -1, "read": 1, "write": 1})
        )


def test_a_message_may_be_as_large_as_the_limit_and_no_larger() -> None:
    around = len(Codec(DATA).encode(Data(b"x" * 2**16))) - 2**16
    codec = Codec(DATA)
    assert len(codec.encode(Data(b"x" * (MESSAGE_BYTES_MAX - around)))) == MESSAGE_BYTES_MAX
    with pytest.raises(MessageTooLarge, match=f"{MESSAGE_BYTES_MAX + 1} bytes, at most {MESSAGE_BYTES_MAX}"):
        codec.encode(Data(b"x" * (MESSAGE_BYTES_MAX + 1 - around)))


def test_the_message_limit_leaves_room_for_the_largest_payload_and_its_fields() -> None:
    assert len(Codec(DATA).encode(Data(b"x" * 4 * 2**20))) < MESSAGE_BYTES_MAX - 60_000


@pytest.mark.parametrize(
    "error",
    [
        FixRequest("a"),
        RetryElsewhere("b"),
        RetryLater("c"),
        GiveUp("d"),
        Unreachable("e"),
        CallLost("f"),
        Overloaded("g"),
        UnknownMethod("h"),
        NotOwner("i: é, 漢, \n"),
    ],
)
def test_a_registered_error_is_decoded_as_the_same_class(error: FairleadError) -> None:
    errors = Errors([NotOwner])
    back = errors.decode(errors.encode(error))
    assert (type(back), str(back)) == (type(error), str(error))


def test_an_error_is_decoded_with_its_fields() -> None:
    errors = Errors([StaleConfig, OfTwoThings])
    stale = errors.decode(errors.encode(StaleConfig("old", CONFIG)))
    assert isinstance(stale, StaleConfig)
    assert (str(stale), stale.config) == ("old", CONFIG)
    for wait_s in (0.5, None):
        two = errors.decode(errors.encode(OfTwoThings("both", ["a", "b"], wait_s=wait_s)))
        assert isinstance(two, OfTwoThings)
        assert (str(two), two.hosts, two.wait_s) == ("both", ["a", "b"], wait_s)


def test_an_unregistered_error_is_decoded_as_its_nearest_registered_base_class() -> None:
    class Moved(NotOwner):
        pass

    assert type(Errors().decode(Errors().encode(NotOwner("x")))) is RetryElsewhere
    assert type(Errors([NotOwner]).decode(Errors([NotOwner]).encode(Moved("x")))) is NotOwner


def test_an_error_that_only_the_sender_knows_is_decoded_as_its_kind() -> None:
    for error, kind in [(StaleConfig("x", CONFIG), RetryElsewhere), (OfTwoThings("x", [], wait_s=None), RetryLater)]:
        back = Errors().decode(Errors([StaleConfig, OfTwoThings]).encode(error))
        assert (type(back), str(back)) == (kind, "x")


def test_an_error_of_the_same_name_is_not_taken_for_the_registered_one() -> None:
    other = type("NotOwner", (FixRequest,), {})
    assert type(Errors([NotOwner]).decode(Errors([NotOwner]).encode(other("x")))) is FixRequest


def test_two_registered_errors_may_not_have_one_name() -> None:
    with pytest.raises(Unsendable, match="two error classes are named NotOwner"):
        Errors([NotOwner, type("NotOwner", (FixRequest,), {})])


def test_an_error_class_that_can_not_be_decoded_is_refused_at_its_registration() -> None:
    class OfAName(FixRequest):
        def __init__(self, name: str) -> None:
            super().__init__(f"{name} is wrong")

    class Untyped(FixRequest):
        def __init__(self, message: str, name) -> None:  # type: ignore[no-untyped-def]
            super().__init__(message)
            self.name = name

    for broken in (OfAName, Untyped):
        with pytest.raises(Unsendable, match=broken.__name__):
            Errors([broken])


def test_the_message_of_an_error_is_bounded_and_always_sendable() -> None:
    errors = Errors()
    for message in ("x" * 10_000, "漢" * 10_000, "a lone surrogate: \ud800"):
        back = str(errors.decode(errors.encode(RetryLater(message))))
        assert len(back.encode()) <= ERROR_MESSAGE_BYTES_MAX
        assert back[:10] == message[:10]


def test_an_error_with_too_large_fields_is_decoded_as_its_kind() -> None:
    errors = Errors([OfTwoThings])
    back = errors.decode(errors.encode(OfTwoThings("x", ["host"] * ERROR_DATA_BYTES_MAX, wait_s=None)))
    assert (type(back), str(back)) == (RetryLater, "x")


def test_an_error_with_defaults_keeps_its_class_if_it_holds_too_much() -> None:
    errors = Errors(API_ERRORS)
    back = errors.decode(errors.encode(AlreadyExists("x", b"x" * (ERROR_DATA_BYTES_MAX + 1))))
    assert (type(back), str(back)) == (AlreadyExists, "x")
    assert isinstance(back, AlreadyExists)
    assert back.detail == b""


@given(st.binary(max_size=100))
def test_an_error_that_can_not_be_decoded_is_raised_as_a_fairlead_error(data: bytes) -> None:
    assert isinstance(Errors([StaleConfig]).decode(data), FairleadError)


def test_an_error_whose_fields_can_not_be_decoded_says_so() -> None:
    broken = msgspec.msgpack.encode(("StaleConfig", "RetryElsewhere", "x", msgspec.msgpack.encode([[1, 2, 3]])))
    back = Errors([StaleConfig]).decode(broken)
    assert type(back) is GiveUp
    assert "can't be decoded" in str(back)
