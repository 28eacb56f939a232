"""Leases: granted as asked, kept while touched, reaped in time.

Each verdict allows for a slow client: a session counts as alive too long only if a
request sent after the limit finds it, and as dead too early only if the answer came
before the lease's end. If the machine was too busy to test a lease, the check is
repeated with a longer one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gymfleet_conformance.native.target import DULL, INVALID, SUITE, UNKNOWN_SESSION, NativeTarget, refused
from gymfleet_conformance.server_under_test import Failed, require, shown

_LEASES_S: Final = (1.0, 2.0, 4.0)
_TOLERANCE: Final = 1.1
_POLL_S: Final = 0.05
_DEADLINE_S: Final = 40.0


class _TooSlow(Exception):
    """The client missed its own deadline, so nothing was learnt."""


@SUITE.must("leases.granted-as-asked")
async def granted_as_asked(target: NativeTarget) -> None:
    """`lease_s` is echoed, and `expires_in_s` lies within it."""
    session = await target.open(lease_s=120.5)
    require(session.lease_s == 120.5, f"asked for 120.5 s, got {session.lease_s}")
    for seen in (session, await target.get(session.session_id)):
        require(0 < seen.expires_in_s <= 120.5, f"expires_in_s is {seen.expires_in_s}")


@SUITE.must("leases.default")
async def default_lease(target: NativeTarget) -> None:
    """A session that asks for no lease gets one all the same."""
    session = await target.open()
    require(session.lease_s > 0, f"lease_s is {session.lease_s}: the session would never be reaped")
    require(0 < session.expires_in_s <= session.lease_s, f"expires_in_s is {session.expires_in_s}")


@SUITE.must("leases.bounds")
async def bounds(target: NativeTarget) -> None:
    """Leases of zero, below, without end and mistyped are refused as 422."""
    session_id = (await target.open()).session_id
    for lease_s in (0, -1, 10**9, "long", [1]):
        refused(await target.try_open(lease_s=lease_s), INVALID)
        refused(await target.call("POST", session_id, "/lease", json={"lease_s": lease_s}), INVALID)


@SUITE.must("leases.reaped-in-time", deadline_s=_DEADLINE_S)
async def reaped_in_time(target: NativeTarget) -> None:
    """An untouched session is gone within its lease plus 10 %, not before its end, and looking does not keep it."""

    async def once(lease_s: float) -> None:
        sent = time.monotonic()
        session_id = (await target.open(lease_s=lease_s)).session_id
        answered = time.monotonic()
        while True:
            asked = time.monotonic()
            response = await target.call("GET", session_id)
            if response.status_code != 200:
                break
            late = asked > answered + lease_s * _TOLERANCE
            require(not late, f"alive {asked - answered:.2f} s after it was opened with a lease of {lease_s:g} s")
            await asyncio.sleep(_POLL_S)
        refused(response, UNKNOWN_SESSION)
        early = time.monotonic() < sent + lease_s
        require(not early, f"gone {time.monotonic() - sent:.2f} s after it was opened with a lease of {lease_s:g} s")

    await _patiently(once, retry_failures=True)


@SUITE.must("leases.reaped-is-gone-for-good", deadline_s=_DEADLINE_S)
async def reaped_is_gone(target: NativeTarget) -> None:
    """A step in a reaped session is a 404 `unknown-session`, never a fresh episode."""

    async def once(lease_s: float) -> None:
        session_id = (await target.open(lease_s=lease_s)).session_id
        await asyncio.sleep(lease_s * _TOLERANCE + _POLL_S)
        refused(await target.try_step(session_id, 0, DULL), UNKNOWN_SESSION)
        refused(await target.call("POST", session_id, "/lease", json={}), UNKNOWN_SESSION)

    await _patiently(once, retry_failures=True)


@SUITE.must("leases.step-extends", deadline_s=_DEADLINE_S)
async def step_extends(target: NativeTarget) -> None:
    """A step starts the lease anew."""

    async def touch(session_id: str, index: int, _: float) -> None:
        response = await target.try_step(session_id, index, DULL)
        require(response.status_code in {200, 409}, f"a step in time: {shown(response)}")

    await _kept_by(target, touch)


@SUITE.must("leases.renewal-extends", deadline_s=_DEADLINE_S)
async def renewal_extends(target: NativeTarget) -> None:
    """`POST .../lease` starts the lease anew."""

    async def touch(session_id: str, _: int, lease_s: float) -> None:
        session = await _renewed(target, session_id, {})
        require(session["lease_s"] == lease_s, f"the lease became {session['lease_s']}; {lease_s} would be right")

    await _kept_by(target, touch)


@SUITE.must("leases.renewal-changes-the-lease")
async def renewal_changes(target: NativeTarget) -> None:
    """A renewal with `lease_s` takes that lease, longer or shorter."""
    session_id = (await target.open(lease_s=50)).session_id
    for lease_s in (500, 5):
        session = await _renewed(target, session_id, {"lease_s": lease_s})
        require(session["lease_s"] == lease_s, f"asked for {lease_s}, got {session['lease_s']}")
        require(session["expires_in_s"] <= lease_s, f"expires in {session['expires_in_s']} s of {lease_s}")
    require((await target.get(session_id)).lease_s == 5, "`GET` shows another lease")


@SUITE.must("leases.shortened-is-reaped", deadline_s=_DEADLINE_S)
async def shortened_is_reaped(target: NativeTarget) -> None:
    """A lease that was shortened ends at its new time."""

    async def once(lease_s: float) -> None:
        session_id = (await target.open(lease_s=600)).session_id
        await _renewed(target, session_id, {"lease_s": lease_s})
        await asyncio.sleep(lease_s * _TOLERANCE + _POLL_S)
        refused(await target.call("GET", session_id), UNKNOWN_SESSION)

    await _patiently(once, retry_failures=True)


async def _renewed(target: NativeTarget, session_id: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await target.call("POST", session_id, "/lease", json=body)
    require(response.status_code == 200, f"a renewal: {shown(response)}")
    session: dict[str, Any] = response.json()
    return session


async def _kept_by(target: NativeTarget, touch: Callable[[str, int, float], Awaitable[None]]) -> None:
    """Touch a session every 0.6 leases; it must still live after it would have expired untouched."""

    async def once(lease_s: float) -> None:
        last_sent = time.monotonic()
        session_id = (await target.open(lease_s=lease_s)).session_id
        for index in range(3):
            await asyncio.sleep(0.6 * lease_s)
            began = time.monotonic()
            try:
                await touch(session_id, index, lease_s)
            except Failed:
                if time.monotonic() > last_sent + lease_s:
                    raise _TooSlow from None
                raise
            last_sent = began

    await _patiently(once)


async def _patiently(once: Callable[[float], Awaitable[None]], *, retry_failures: bool = False) -> None:
    """Retry with longer leases if the client was too slow or, where a tenth of the lease is short, if it failed."""
    for lease_s in _LEASES_S:
        try:
            await once(lease_s)
        except _TooSlow:
            if lease_s == _LEASES_S[-1]:
                raise Failed("this machine was too busy to tell") from None
        except Failed:
            if not retry_failures or lease_s == _LEASES_S[-1]:
                raise
        else:
            return
