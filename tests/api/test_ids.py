"""New run ids."""

import os
import uuid

from fairlead.api.ids import id_maker, uuid7

NOW_NS = 1_800_000_000_123_456_789


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_its_first_48_bits() -> None:
    made = uuid.UUID(id_maker(lambda: NOW_NS)())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == NOW_NS // 1_000_000


def test_later_ids_sort_after_earlier_ones() -> None:
    random = (1 << 62) - 1
    moments = [NOW_NS + step * 256 for step in range(5000)]
    made = [uuid7(moment, random - step) for step, moment in enumerate(moments)]
    assert made == sorted(made)


def test_two_ids_of_the_same_time_differ() -> None:
    make = id_maker(lambda: NOW_NS)
    assert len({make() for _ in range(1000)}) == 1000


def test_random_bits_do_not_change_version_and_variant() -> None:
    made = uuid.UUID(uuid7(NOW_NS, (1 << 64) - 1))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    make = id_maker(lambda: NOW_NS)
    make()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_end, make().encode())
        os._exit(0)
    os.waitpid(child, 0)
    of_child = os.read(read_end, 100).decode()
    os.close(read_end)
    os.close(write_end)
    assert uuid.UUID(of_child) != uuid.UUID(make())
