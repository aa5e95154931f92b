"""Roles and people: what each may do with whose runs, how much of it, and in which order."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace

import pytest

from engine.errors import EngineError
from engine.manifest import known_zoos, locate_description, made_folder
from engine.store import Store
from engine.store.desk import Desk, deeds
from engine.store.people import AT_THE_MACHINE, NotAllowed, Person, Settings, check_allowed, person_of
from engine.store.uploads import Uploads

ISSUER = "https://login.example.org"
OIDC = Settings(
    login="oidc",
    issuer=ISSUER,
    roles=(("admin", frozenset({"it"})), ("member", frozenset({"lab"})), ("viewer", frozenset({"*"}))),
)
ANNA, BEN = Person("a@x.org", "a", "member"), Person("b@x.org", "b", "member")
IDA = Person("i@x.org", "i", "admin")
VIEWER = Person("v@x.org", "v", "viewer")


def claims(**changes):
    found = {"iss": ISSUER, "iat": time.time(), "email": "Anna@x.org", "name": "Anna", "groups": ["lab"], **changes}
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def store(tmp_path, database_url):
    found = Store(tmp_path / "store", database_url=database_url)
    yield found
    found.database.close()


@pytest.fixture
def desks(store):
    return [Desk(store, person, OIDC) for person in (ANNA, BEN, IDA, VIEWER)]


def test_claims_say_who_somebody_is():
    assert person_of(claims(), OIDC) == Person("anna@x.org", "Anna", "member")
    assert person_of(claims(groups=["lab", "it"], name=None), OIDC) == Person("anna@x.org", "Anna@x.org", "admin")
    assert person_of(claims(groups="other, it"), OIDC).role == "admin"
    assert person_of(claims(groups=None), OIDC).role == "viewer"
    assert person_of(claims(email_verified=True), OIDC).id == "anna@x.org"
    by_subject = replace(OIDC, id_claim="sub")
    assert person_of(claims(sub="248289", email_verified=False), by_subject).id == "248289"


def test_ids_of_a_provider_are_taken_letter_by_letter_and_addresses_are_not():
    by_subject = replace(OIDC, id_claim="sub")
    ids = ["AbC", "aBc", "x" * 254 + "1", "x" * 254 + "2"]
    assert [person_of(claims(sub=own), by_subject).id for own in ids] == ids
    assert {person_of(claims(email=own), OIDC).id for own in ("Anna@X.org ", "anna@x.org")} == {"anna@x.org"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iss": "https://evil.example"}, "another provider"),
        ({"iss": None}, "another provider"),
        ({"iat": time.time() - 13 * 3600}, "too old"),
        ({"iat": time.time() + 3600}, "too old"),
        ({"iat": None}, "too old"),
        ({"email": None}, "no 'email'"),
        ({"email": "  "}, "no 'email'"),
        ({"email_verified": False}, "not verified your e-mail"),
        ({"email_verified": "false"}, "not verified your e-mail"),
        ({"email": ["anna@x.org"]}, "no 'email'"),
    ],
)
def test_claims_that_prove_nothing_are_refused(changes, reason):
    with pytest.raises(NotAllowed, match=reason):
        person_of(claims(**changes), OIDC)


@pytest.mark.parametrize("groups", [None, "*", ["*"], {"it": True}, [["it"]]])
def test_nobody_gets_a_role_that_was_not_given(groups):
    closed = Settings(login="headers", roles=OIDC.roles[:2])
    with pytest.raises(NotAllowed, match="no role"):
        person_of(claims(groups=groups), closed)


def test_settings_are_read_and_checked():
    assert Settings.of_environment({}) == Settings(roles=(("member", frozenset("*")),))
    found = Settings.of_environment({"MERGELENS_LOGIN": "oidc", "MERGELENS_ROLES": "viewer=* admin=it,owners"})
    assert found.roles == (("admin", frozenset({"it", "owners"})), ("viewer", frozenset("*")))
    wrongs = [{"MERGELENS_LOGIN": "odic"}, {"MERGELENS_ROLES": "root=it"}, {"MERGELENS_QUOTA_RUNS": "many"}]
    for wrong in (*wrongs, {"MERGELENS_ROLES": "admin=it admin=owners"}):
        with pytest.raises(EngineError, match=next(iter(wrong))):
            Settings.of_environment(wrong)


def test_what_roles_may_do():
    for person, action, owner, allowed in [
        (VIEWER, "look", "", True),
        (VIEWER, "run", "", False),
        (VIEWER, "change", VIEWER.id, False),
        (ANNA, "run", "", True),
        (ANNA, "change", ANNA.id, True),
        (ANNA, "change", BEN.id, False),
        (ANNA, "change", "", False),
        (ANNA, "clean", "", False),
        (IDA, "change", ANNA.id, True),
        (IDA, "clean", "", True),
        (AT_THE_MACHINE, "clean", "", True),
        (AT_THE_MACHINE, "change", ANNA.id, True),
    ]:
        if allowed:
            check_allowed(person, action, owner)
        else:
            with pytest.raises(NotAllowed):
                check_allowed(person, action, owner)


def test_runs_of_others_are_looked_at_and_left_alone(store, desks):
    anna, ben, ida, viewer = desks
    run = anna.submit("run", {"recipe": {}}, name="Mine")
    assert run.person == ANNA.id
    for stranger in (ben, viewer):
        for deed in (stranger.cancel, stranger.resume, stranger.delete, stranger.undelete):
            with pytest.raises(NotAllowed):
                deed(run.id)
        with pytest.raises(NotAllowed):
            stranger.edit(run.id, name="Theirs")
        assert ("start nothing" if stranger is viewer else f"belongs to {ANNA.id}") in stranger.refusal(run)
    assert (store.runs.get(run.id).state, store.runs.get(run.id).name) == ("queued", "Mine")
    assert (anna.refusal(run), ida.refusal(run)) == ("", "")
    assert anna.edit(run.id, name="Named").name == "Named"
    assert ida.cancel(run.id).state == "cancelled"
    anna.delete(run.id)
    ida.undelete(run.id)
    assert [(deed.action, deed.person, deed.run) for deed in deeds(store)] == [
        ("undelete", IDA.id, run.id),
        ("delete", ANNA.id, run.id),
    ]


def test_only_admins_clean_up_and_viewers_start_nothing(store, desks):
    anna, _, ida, viewer = desks
    assert anna.submit("gc", {"asked": 1.0, "dry": True}).state == "queued"
    with pytest.raises(NotAllowed, match="Only an admin"):
        anna.submit("gc", {"asked": 1.0, "dry": False})
    with pytest.raises(NotAllowed, match="start nothing"):
        viewer.submit("run", {})
    row = ida.submit("gc", {"asked": 1.0, "dry": False})
    assert [(deed.action, deed.run) for deed in deeds(store)] == [("clean", row.id)]


def test_people_have_quotas(store):
    few = Desk(store, ANNA, Settings(login="oidc", runs=2))
    first = few.submit("run", {})
    few.submit("run", {})
    with pytest.raises(NotAllowed, match="2 runs queued or at work"):
        few.submit("run", {})
    store.runs.fail(first.id, "no")
    few.submit("run", {})
    with pytest.raises(NotAllowed, match="2 runs queued"):
        few.resume(first.id)
    with store.create("ab" * 32, step="made") as folder:
        (folder / "file").write_bytes(bytes(1000))
    store.runs.set_step_keys(first.id, ["ab" * 32])
    with pytest.raises(NotAllowed, match=r"0\.0 GB are the most"):
        Desk(store, ANNA, Settings(login="oidc", runs=99, bytes=1000)).submit("run", {})
    few.delete(first.id)  # which can be brought back, and takes its room until somebody cleans up
    with pytest.raises(NotAllowed, match=r"0\.0 GB are the most"):
        Desk(store, ANNA, Settings(login="oidc", runs=99, bytes=1000)).submit("run", {})
    bens = Desk(store, BEN, Settings(login="oidc", runs=99, bytes=1000))
    assert bens.submit("run", {}).person == BEN.id
    uploads = Uploads(store.root)
    tray, digest = uploads.new_tray(BEN.id), hashlib.sha256(bytes(1000)).hexdigest()
    uploads.offer(tray, "a.pt", 1000, digest)
    with uploads.append(tray, digest, 1000, 0) as write:
        write(bytes(1000))
    with pytest.raises(NotAllowed, match="results and uploads take"):
        bens.submit("run", {})


def test_people_take_turns(store, desks):
    anna, ben, *_ = desks
    rows = [anna.submit("run", {}, name=f"a{n}") for n in range(3)] + [ben.submit("run", {}, name="b0")]
    assert [store.runs.claim_next("service").name for _ in rows] == ["a0", "b0", "a1", "a2"]


def test_owners_outlive_the_table_and_records_without_one_are_read(store, desks):
    run, other = desks[0].submit("run", {}), store.runs.submit("run", {})
    record = store.root / "runs" / f"{other.id}.json"
    document = json.loads(record.read_text())
    del document["person"]
    record.write_text(json.dumps(document))
    assert {row["id"]: row["person"] for row in store.history.rows()} == {run.id: ANNA.id, other.id: ""}


def test_zoos_belong_to_who_asked_for_them(store, desks, tmp_path):
    """Adding experts to a zoo, and making another in its place, are changes of it."""
    anna, ben, ida, _ = desks
    mine, older = tmp_path / "mine", tmp_path / "older"
    anna.submit("import", {"out": str(mine), "check": True})
    assert store.zoos.owner(mine) == ""
    anna.submit("import", {"out": str(mine)})
    assert store.zoos.list() == []  # it is not there yet
    for folder in (mine, older):
        folder.mkdir()
        (folder / "zoo.yaml").write_text("name: zoo")
        store.zoos.add(folder)
    assert (store.zoos.owner(mine), store.zoos.list()) == (ANNA.id, [older, mine])
    changes = [("import", {"out": str(mine)}), ("finetune", {"zoo": str(tmp_path / "." / "mine")})]
    changes += [("align", {"zoo": str(mine)}), ("import", {"out": str(mine / "zoo.yaml")})]
    changes += [(kind, {"zoo": str(mine / "zoo.yaml")}) for kind in ("finetune", "align")]
    for kind, request in changes:
        with pytest.raises(NotAllowed, match=r"zoo belongs to a@x\.org"):
            ben.submit(kind, request)
        anna.submit(kind, request)
        ida.submit(kind, request)
    assert store.zoos.owner(mine) == ANNA.id
    with pytest.raises(NotAllowed, match="zoo belongs to nobody who logs in"):
        ben.submit("finetune", {"zoo": str(older)})
    ben.submit("run", {"recipe": {"zoo": str(mine)}})  # looking at it is for all
    ben.submit("copy", {"zoo": str(mine), "name": "his"})
    with pytest.raises(NotAllowed, match=r"zoo belongs to b@x\.org"):
        anna.submit("finetune", {"zoo": str(store.root / "zoos" / "his")})


def test_zoos_that_come_with_the_app_belong_to_no_member(store, desks, tmp_path, monkeypatch):
    """They are changed by the name that the planner opens, whatever folder that is."""
    anna, _, ida, _ = desks
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    described = next(zoo.name for zoo in known_zoos() if zoo.described)
    (tmp_path / "given.yaml").write_text("name: given")
    for zoo in ("mini8", described, str(tmp_path / "given.yaml")):
        for kind in ("finetune", "align"):
            with pytest.raises(NotAllowed, match="zoo belongs to nobody who logs in"):
                anna.submit(kind, {"zoo": zoo})
        assert "copy it" in anna.zoo_refusal(zoo)
        assert ida.zoo_refusal(zoo) == ""
    made = made_folder(locate_description(described))
    made.mkdir(parents=True)
    (made / "zoo.yaml").write_text("name: made")
    store.zoos.own(made, ANNA.id)
    assert anna.submit("finetune", {"zoo": described}).state == "queued"
