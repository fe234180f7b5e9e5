"""Tokens that were given out, at made-up times: who may use one, and how many there may be."""

from __future__ import annotations

import pytest

from edge_agent.agent.invitations import MAX_OPEN, MAX_REMEMBERED, Invitations
from edge_agent.errors import Busy, PeerRefused
from edge_agent.peers import PublicKey, device_id, public_key

A = public_key(b"a" * 32)
B = public_key(b"b" * 32)
UNKNOWN = "the token is not known here: ask for a new one"
EXPIRED = "the token has expired: ask for a new one"
USED_BY_A = f"the token was used by device {device_id(A)[:8]}… already: ask for a new one"
REMOVED = "the device that used the token was removed here: ask for a new one"
FULL = "16 tokens are open: wait until one is used or has expired"


def token(number: int) -> PublicKey:
    return public_key(number.to_bytes(32, "big"))


T = token(0)


def given_out(*numbers: int, ttl_s: float = 10.0, now_s: float = 100.0) -> Invitations:
    made = Invitations()
    for number in numbers:
        made.add(token(number), ttl_s, now_s)
    return made


def refused(invitations: Invitations, key: PublicKey, device: PublicKey, now_s: float) -> str:
    with pytest.raises(PeerRefused) as told:
        invitations.check(key, device, now_s)
    return str(told.value)


def test_a_token_that_was_not_given_out_is_not_known() -> None:
    invitations = given_out(0)
    assert T in invitations
    assert token(1) not in invitations
    assert refused(invitations, token(1), A, 100.0) == UNKNOWN


def test_a_token_is_good_until_its_time_and_then_expired_but_known() -> None:
    invitations = given_out(0)
    invitations.check(T, A, 109.999)
    assert refused(invitations, T, A, 110.0) == EXPIRED
    assert T in invitations


def test_looking_at_a_token_does_not_use_it() -> None:
    invitations = given_out(0)
    invitations.check(T, A, 101.0)
    invitations.check(T, B, 101.0)


def test_the_device_that_used_a_token_may_come_again_also_when_it_has_expired() -> None:
    invitations = given_out(0)
    invitations.use(T, A)
    invitations.check(T, A, 101.0)
    invitations.use(T, A)
    invitations.check(T, A, 1e9)


@pytest.mark.parametrize("now_s", [101.0, 1e9])
def test_another_device_is_told_who_used_the_token(now_s: float) -> None:
    invitations = given_out(0)
    invitations.use(T, A)
    assert refused(invitations, T, B, now_s) == USED_BY_A


def test_a_token_with_which_nobody_joined_after_all_is_open_again_until_its_time() -> None:
    invitations = given_out(0)
    invitations.use(T, A)
    invitations.release(T, A)
    invitations.check(T, B, 109.0)
    assert refused(invitations, T, B, 110.0) == EXPIRED


def test_only_the_device_that_used_a_token_releases_it() -> None:
    invitations = given_out(0)
    invitations.use(T, A)
    invitations.release(T, B)
    invitations.release(token(1), A)
    assert refused(invitations, T, B, 101.0) == USED_BY_A


def test_a_removed_device_does_not_come_back_with_what_it_joined_with() -> None:
    invitations = given_out(0, 1)
    invitations.use(T, A)
    invitations.use(token(1), B)
    invitations.forget(A)
    assert refused(invitations, T, A, 101.0) == REMOVED
    assert refused(invitations, T, B, 101.0) == REMOVED
    invitations.release(T, A)
    assert refused(invitations, T, A, 101.0) == REMOVED
    invitations.check(token(1), B, 101.0)


def test_a_new_token_brings_a_removed_device_back() -> None:
    invitations = given_out(0)
    invitations.use(T, A)
    invitations.forget(A)
    invitations.add(token(1), 10.0, 101.0)
    invitations.check(token(1), A, 102.0)


def test_no_token_outlives_the_key_that_stands_in_it() -> None:
    invitations = given_out(0, 1)
    invitations.use(T, A)
    invitations.clear()
    assert T not in invitations
    assert refused(invitations, T, A, 101.0) == UNKNOWN
    assert refused(invitations, token(1), A, 101.0) == UNKNOWN


def test_so_many_tokens_are_open_at_once_and_no_more() -> None:
    invitations = given_out(*range(MAX_OPEN))
    with pytest.raises(Busy) as told:
        invitations.add(token(99), 10.0, 109.999)
    assert str(told.value) == FULL
    assert token(99) not in invitations
    invitations.add(token(99), 10.0, 110.0)
    assert token(99) in invitations


def test_a_used_token_makes_room_for_another_one_and_a_released_one_takes_it_again() -> None:
    invitations = given_out(*range(MAX_OPEN))
    invitations.use(T, A)
    invitations.add(token(99), 10.0, 101.0)
    invitations.use(token(99), B)
    invitations.release(T, A)
    with pytest.raises(Busy):
        invitations.add(token(100), 10.0, 101.0)


def test_of_the_tokens_that_are_of_no_use_the_oldest_are_forgotten() -> None:
    invitations = Invitations()
    count = MAX_REMEMBERED + 10
    for number in range(count):
        invitations.add(token(number), 1.0, float(number))
    # Only the last one is open when it is added.
    known = [number for number in range(count) if token(number) in invitations]
    assert known == list(range(count - 1 - MAX_REMEMBERED, count))
    assert refused(invitations, token(0), A, 1e3) == UNKNOWN
    assert refused(invitations, token(known[0]), A, 1e3) == EXPIRED


def test_no_open_token_is_forgotten_for_closed_ones() -> None:
    invitations = given_out(*range(MAX_OPEN - 1), ttl_s=1e6)
    for number in range(1000, 1200):
        invitations.add(token(number), 1.0, float(number))
    for number in range(MAX_OPEN - 1):
        invitations.check(token(number), A, 2000.0)
    closed = [number for number in range(1000, 1200) if token(number) in invitations]
    assert closed == list(range(1199 - MAX_REMEMBERED, 1200))
