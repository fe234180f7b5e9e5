"""Which tokens this agent gave out, and what became of each."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from edge_agent.devices import DeviceId
from edge_agent.errors import Busy, PeerRefused
from edge_agent.peers import PublicKey, device_id

MAX_OPEN = 16
"""Tokens that may be open at once."""
MAX_REMEMBERED = 64
"""Of the ones that are used up or expired, so that whoever comes with one is told why not."""
MAX_TTL_S = 7 * 86_400.0


@dataclass(slots=True)
class _Invitation:
    until_s: float
    used_by: PublicKey | None = None
    is_spent: bool = False
    """The device that used it was removed."""

    def is_open(self, now_s: float) -> bool:
        return self.used_by is None and not self.is_spent and now_s < self.until_s


class Invitations:
    """Tokens by the public key of their secret. They end with the agent. One thread uses it."""

    def __init__(self) -> None:
        self._known: OrderedDict[PublicKey, _Invitation] = OrderedDict()

    def add(self, key: PublicKey, ttl_s: float, now_s: float) -> None:
        """A token was given out.

        Raises: Busy: too many are open.
        """
        if sum(one.is_open(now_s) for one in self._known.values()) >= MAX_OPEN:
            raise Busy(f"{MAX_OPEN} tokens are open: wait until one is used or has expired")
        self._known[key] = _Invitation(now_s + ttl_s)
        closed = [k for k, one in self._known.items() if not one.is_open(now_s)]
        for old in closed[:-MAX_REMEMBERED]:
            del self._known[old]

    def __contains__(self, key: PublicKey) -> bool:
        """Whether it is one, also if it is of no use any more: then that is told."""
        return key in self._known

    def check(self, key: PublicKey, device: PublicKey, now_s: float) -> None:
        """Whether that device may join with that token. One that it used itself it may use again:
        the answer may have been lost.

        Raises: PeerRefused: saying why not.
        """
        found = self._known.get(key)
        if found is None:
            raise PeerRefused("the token is not known here: ask for a new one")
        if found.is_spent:
            raise PeerRefused("the device that used the token was removed here: ask for a new one")
        if found.used_by is not None and found.used_by != device:
            raise PeerRefused(
                f"the token was used by device {_short(device_id(found.used_by))} already: ask for "
                "a new one"
            )
        if found.used_by is None and now_s >= found.until_s:
            raise PeerRefused("the token has expired: ask for a new one")

    def use(self, key: PublicKey, device: PublicKey) -> None:
        """The device joins with it."""
        self._known[key].used_by = device

    def release(self, key: PublicKey, device: PublicKey) -> None:
        """The device could not join with it after all."""
        found = self._known.get(key)
        if found is not None and found.used_by == device:
            found.used_by = None

    def forget(self, device: PublicKey) -> None:
        """The device was removed: what it joined with does not bring it back."""
        for one in self._known.values():
            if one.used_by == device:
                one.used_by, one.is_spent = None, True

    def clear(self) -> None:
        """This device has another key: tokens with the one before are of no use."""
        self._known.clear()


def _short(device: DeviceId) -> str:
    return f"{device[:8]}…"
