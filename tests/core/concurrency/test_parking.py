"""Parked keys: one try for each free slot, and one after a while without a notification."""

import math

from fairlead.core.concurrency import RETRY_S, Parking
from fairlead.core.concurrency.parking import KEYS_MAX


def test_a_key_that_is_not_parked_may_be_tried_at_any_time() -> None:
    parking = Parking()
    parking.freed("a")
    parking.take("a", 0.0)
    parking.started("a")
    assert parking.ready_s("a", 5.0) == 5.0
    assert (len(parking), parking.next_s()) == (0, math.inf)


def test_each_free_slot_gives_one_try() -> None:
    """FL-84: parked keys try as often as slots become free."""
    parking = Parking()
    parking.refused("a", 10.0)
    assert parking.ready_s("a", 10.0) == parking.next_s() == 10.0 + RETRY_S
    parking.freed("a")
    parking.freed("a")
    for _ in range(2):
        assert parking.ready_s("a", 10.1) == 10.1
        parking.take("a", 10.1)
        parking.started("a")
    assert parking.ready_s("a", 10.1) == 10.0 + RETRY_S
    assert parking.ready_s("b", 10.1) == 10.1


def test_a_try_without_a_notification_goes_on_after_a_success_and_ends_with_a_refusal() -> None:
    """FL-85: the notification of a free slot may be lost."""
    parking = Parking()
    parking.refused("a", 0.0)
    parking.take("a", RETRY_S)
    assert parking.ready_s("a", RETRY_S) == 2 * RETRY_S
    parking.started("a")
    assert parking.ready_s("a", RETRY_S) == RETRY_S
    parking.take("a", RETRY_S)
    parking.refused("a", RETRY_S)
    assert parking.ready_s("a", RETRY_S) == 2 * RETRY_S
    parking.freed("a")
    parking.take("a", RETRY_S)
    parking.started("a")
    assert parking.ready_s("a", RETRY_S) == 2 * RETRY_S


def test_a_refusal_takes_back_all_saved_tries() -> None:
    parking = Parking()
    parking.refused("a", 0.0)
    for _ in range(5):
        parking.freed("a")
    parking.refused("a", 0.0)
    assert parking.ready_s("a", 0.0) == RETRY_S


def test_the_number_of_remembered_keys_is_bounded() -> None:
    parking = Parking()
    for number in range(KEYS_MAX + 1):
        parking.refused(str(number), 0.0)
    assert len(parking) == KEYS_MAX
    assert "0" not in parking
