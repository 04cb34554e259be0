"""Parked keys: one try for each free slot, and one after a while without a notification."""

import math

from fairlead.core.concurrency import RETRY_S, ParkedKeys
from fairlead.core.concurrency.parked_keys import KEYS_MAX


def test_a_key_that_is_not_parked_may_be_tried_at_any_time() -> None:
    parked = ParkedKeys()
    parked.freed("a")
    parked.take("a", 0.0)
    parked.started("a")
    assert parked.ready_s("a", 5.0) == 5.0
    assert (len(parked), parked.next_s()) == (0, math.inf)


def test_each_free_slot_gives_one_try() -> None:
    """FL-84: parked keys try as often as slots become free."""
    parked = ParkedKeys()
    parked.refused("a", 10.0)
    assert parked.ready_s("a", 10.0) == parked.next_s() == 10.0 + RETRY_S
    parked.freed("a")
    parked.freed("a")
    for _ in range(2):
        assert parked.ready_s("a", 10.1) == 10.1
        parked.take("a", 10.1)
        parked.started("a")
    assert parked.ready_s("a", 10.1) == 10.0 + RETRY_S
    assert parked.ready_s("b", 10.1) == 10.1


def test_tries_without_a_notification_continue_until_one_fails() -> None:
    """FL-85: the notification of a free slot may be lost."""
    parked = ParkedKeys()
    parked.refused("a", 0.0)
    parked.take("a", RETRY_S)
    assert parked.ready_s("a", RETRY_S) == 2 * RETRY_S
    parked.started("a")
    assert parked.ready_s("a", RETRY_S) == RETRY_S
    parked.take("a", RETRY_S)
    parked.refused("a", RETRY_S)
    assert parked.ready_s("a", RETRY_S) == 2 * RETRY_S
    parked.freed("a")
    parked.take("a", RETRY_S)
    parked.started("a")
    assert parked.ready_s("a", RETRY_S) == 2 * RETRY_S


def test_a_refusal_takes_back_all_saved_tries() -> None:
    parked = ParkedKeys()
    parked.refused("a", 0.0)
    for _ in range(5):
        parked.freed("a")
    parked.refused("a", 0.0)
    assert parked.ready_s("a", 0.0) == RETRY_S


def test_the_number_of_remembered_keys_is_bounded() -> None:
    parked = ParkedKeys()
    for number in range(KEYS_MAX + 1):
        parked.refused(str(number), 0.0)
    assert len(parked) == KEYS_MAX
    assert "0" not in parked
