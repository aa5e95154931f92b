"""The rules of an installation that several people share: who somebody is, and what each role may do.

On a laptop nobody logs in, and whoever sits there may do everything. Pages ask :class:`engine.store.desk.Desk`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import EngineError, nearest

Role = Literal["viewer", "member", "admin"]
Login = Literal["", "oidc", "headers"]
Action = Literal["look", "run", "change", "clean"]

LOGIN, ROLES, ROLE_CLAIM, ID_CLAIM = "MERGELENS_LOGIN", "MERGELENS_ROLES", "MERGELENS_ROLE_CLAIM", "MERGELENS_ID_CLAIM"
ISSUER, SESSION_HOURS = "MERGELENS_ISSUER", "MERGELENS_SESSION_HOURS"
QUOTA_RUNS, QUOTA_BYTES = "MERGELENS_QUOTA_RUNS", "MERGELENS_QUOTA_GB"
EVERYBODY = "*"
RANKS: tuple[Role, ...] = get_args(Role)
NEEDS: dict[Action, Role] = {"look": "viewer", "run": "member", "change": "member", "clean": "admin"}
MAY_NOT = {
    "look": "Your account has no role here. Ask who runs this app for one.",
    "run": "You may look at everything and start nothing. Ask who runs this app for the role of a member.",
    "clean": "Only an admin may clean up the store, which everybody shares.",
}


class NotAllowed(EngineError):
    """Somebody asked for what their role does not allow, or could not show who they are."""


@dataclass(frozen=True)
class Person:
    """Somebody who uses the app."""

    id: str  # the same at every login; empty where nobody logs in
    name: str
    role: Role


AT_THE_MACHINE = Person("", "", "admin")


@dataclass(frozen=True)
class Settings:
    """Settings of an installation's login; all off by default."""

    login: Login = ""
    roles: tuple[tuple[Role, frozenset[str]], ...] = ()  # role → values of the claim that give it
    role_claim: str = "groups"
    id_claim: str = "email"
    issuer: str = ""
    session: float = 12 * 3600.0  # seconds after which somebody logs in again
    runs: int = 20  # queued or at work, a person
    bytes: int = 0  # that the results of a person may take; 0: no bound

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings.

        Raises:
            EngineError: one of them cannot be used.
        """
        login = environment.get(LOGIN, "").strip()
        if login not in get_args(Login):
            raise EngineError(f"{LOGIN} is '{login}'. {nearest(login, ('oidc', 'headers'))} Leave it out for no login.")
        given = {name: environment[key] for name, key in _TEXTS.items() if environment.get(key)}
        try:
            hours, runs, room = (float(environment.get(key) or default) for key, default in _NUMBERS)
        except ValueError as error:
            names = ", ".join(key for key, _ in _NUMBERS)
            raise EngineError(f"One of {names} is no number: {error}.") from error
        roles = _read_roles(environment.get(ROLES, ""))
        return cls(login=login, roles=roles, session=3600 * hours, runs=int(runs), bytes=int(room * 1e9), **given)


_TEXTS = {"role_claim": ROLE_CLAIM, "id_claim": ID_CLAIM, "issuer": ISSUER}
_NUMBERS = ((SESSION_HOURS, 12), (QUOTA_RUNS, 20), (QUOTA_BYTES, 0))


def person_of(claims: Mapping[str, Any], settings: Settings) -> Person:
    """Return who has logged in.

    Args:
        claims: as the provider signed them, or the proxy's headers by name.
        settings: of the installation.

    Raises:
        NotAllowed: claims of another issuer, too old ones, or without an id that holds; or no role goes with them.
    """
    if settings.login == "oidc":
        _check_token(claims, settings)
    ident = claims.get(settings.id_claim)
    ident = ident.strip() if isinstance(ident, str) else ""
    if not ident:
        raise NotAllowed(f"Your login has no '{settings.id_claim}', which says who you are here.")
    values = _values(claims.get(settings.role_claim))
    role = next((role for role, accepted in settings.roles if accepted & {*values, EVERYBODY}), None)
    if role is None:
        raise NotAllowed(MAY_NOT["look"])
    name = claims.get("name")
    own = ident.lower() if settings.id_claim == "email" else ident  # ids of a provider differ by case, addresses do not
    return Person(own, name if isinstance(name, str) and name else ident, role)


def check_allowed(person: Person, action: Action, owner: str = "", *, what: str = "run") -> None:
    """Refuse what somebody may not do.

    Args:
        person: who asks.
        action: ``look``, ``run`` (submit, copy), ``change`` (cancel, resume, rename, delete a run), ``clean``.
        owner: id of the person whom it belongs to; what belongs to nobody is an admin's.
        what: is to be changed, a run or a zoo.

    Raises:
        NotAllowed: with a sentence that says why.
    """
    if RANKS.index(person.role) < RANKS.index(NEEDS[action]):
        raise NotAllowed(MAY_NOT.get(action, MAY_NOT["run"]))
    if action == "change" and person.role != "admin" and owner != person.id:
        whose = f"to {owner}" if owner else "to nobody who logs in"
        raise NotAllowed(
            f"This {what} belongs {whose}. You may look at it and copy it; its owner or an admin changes it."
        )


def is_allowed(person: Person, action: Action, owner: str = "") -> bool:
    """Return whether somebody may do something, as :func:`check_allowed` decides it."""
    try:
        check_allowed(person, action, owner)
    except NotAllowed:
        return False
    return True


def _check_token(claims: Mapping[str, Any], settings: Settings) -> None:
    if settings.issuer and claims.get("iss") != settings.issuer:
        raise NotAllowed("Your login is of another provider than this app's. Log in again.")
    moment = claims.get("iat")
    if not isinstance(moment, (int, float)) or not -60 < time.time() - moment < settings.session:
        raise NotAllowed("Your login is too old. Log in again.")
    if settings.id_claim == "email" and claims.get("email_verified") in (False, "false"):
        raise NotAllowed(
            "Your provider has not verified your e-mail address, which says who you are here. Have it verified there, "
            f"or ask who runs this app to set {ID_CLAIM} to sub."
        )


def _values(claim: Any) -> set[str]:
    """Return the values of a claim: a list, or a text with commas, as proxies send it."""
    parts: Iterable[Any] = claim.split(",") if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    return {part.strip() for part in parts if isinstance(part, str) and part.strip() not in ("", EVERYBODY)}


def _read_roles(text: str) -> tuple[tuple[Role, frozenset[str]], ...]:
    """Read ``admin=it,owners member=lab viewer=*``; the highest role comes first. Without it everybody is a member."""
    found: dict[str, frozenset[str]] = {}
    for part in text.split() or [f"member={EVERYBODY}"]:
        role, separator, values = part.partition("=")
        if role not in RANKS or not separator or not values:
            raise EngineError(f"{ROLES} has '{part}'; write ROLE=VALUE,VALUE with one of {', '.join(RANKS)}.")
        if role in found:
            raise EngineError(f"{ROLES} says {role} twice; write it once, as {role}=VALUE,VALUE.")
        found[role] = frozenset(value.strip() for value in values.split(","))
    return tuple((role, found[role]) for role in reversed(RANKS) if role in found)
