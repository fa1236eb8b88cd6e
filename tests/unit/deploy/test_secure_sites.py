"""Secure aggregation between hosts: single uploads look random, sums are the simulator's, no mask is used twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

from fedkin.capabilities.sums import sums_suffice
from fedkin.core import Bundle, ConfigError
from fedkin.data import SiteData
from fedkin.experiment.settings import Settings
from fedkin.methods import METHODS, get_method
from fedkin.privacy.secure_sum import SecureGroup, fixed, summed
from fedkin_hosts import masks
from fedkin_hosts.client import ClientService
from fedkin_hosts.client_memory import ClientStore
from fedkin_hosts.heads import WireError, WireMessage
from fedkin_hosts.masks import MemberTable, Unmasked
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import (
    Direct,
    Heard,
    bare,
    changing,
    happening,
    lines,
    on_hosts,
    same_server,
    settings,
    silent,
    simulated,
    sites,
    traced,
)
from kills import Killed
from madeup import changed
from refusals import refuses
from thorough import thorough_except
from toys import refused

OFFERED = [name for name in METHODS if sums_suffice(get_method(name))]


def secure(name: str = "fedrep", **tables: Any) -> Settings:
    return settings(name, **{**tables, "aggregation": {"secure": True, **tables.get("aggregation", {})}})


def update(of: WireMessage, round: int | None = None) -> bool:
    return of.head["kind"] == "update" and round in (None, of.head["round"])


# ---- masks --------------------------------------------------------------------------------------------------------
SECRETS = [bytes([i]) * 32 for i in range(1, 8)]


def table(count: int = 3, **changes: Any) -> MemberTable:
    members = tuple((i, masks.public_of(s), 1.0) for i, s in enumerate(SECRETS[:count]))
    return replace(MemberTable("run", 1, members, "asked"), **changes)


@given(
    st.integers(3, 6),
    st.integers(0, 40),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=6 * 6, max_size=6 * 6),
)
@trying(max_examples=30, deadline=None)
def test_masks_cancel_in_the_sum(count: int, more: int, values: list[float]) -> None:
    """The sum of masked addends is bit for bit that of bare ones, for any pool, numbers and shapes, empty ones too."""
    t = table(count)
    rows = torch.tensor(values[: 6 * count]).view(count, 2, 3)
    single = {i: Bundle(b=rows[i], a=torch.full((more,), float(i)), one=torch.tensor(0.5)) for i in range(count)}
    pools = {i: SecureGroup(tuple(range(count)), 1.0, float(count)) for i in range(count)}
    bare = {i: fixed(b, pools[i]) for i, b in single.items()}
    hidden = {i: masks.masked(b, t, i, SECRETS[i]) for i, b in bare.items()}
    plain, _ = summed(pools, bare, single[0], 1e8)
    ours, refused = summed(pools, hidden, single[0], 1e8)
    assert not refused
    assert all(torch.equal(ours[0][n], plain[0][n]) for n in plain[0])


@pytest.mark.parametrize("content", ["zeros", "a model"])
def test_a_single_upload_looks_random(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of what one client sends are uniform: chi-square over 256 values within six sigma, for zeros, too. No
    number stays as it was, however many blocks a stream is made in."""
    monkeypatch.setattr(masks, "_BLOCK", 8 * 999)
    n = 20_000
    w = torch.zeros(n, dtype=torch.int64) if content == "zeros" else (torch.randn(n) * 2**31).long()
    sent = masks.masked(Bundle(w=w), table(), 1, SECRETS[1]).w
    counts = torch.bincount(sent.view(torch.uint8).long(), minlength=256).double()
    expected = 8 * n / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 255) < 6 * (2 * 255) ** 0.5
    assert len(sent.unique()) == n
    assert not bool((sent == w).any())


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "other"},
        {"round": 2},
        {"members": (*table().members[:2], (*table().members[2][:2], 2.0))},
        {"members": table(4).members},
        {"asked": "other"},
    ],
    ids=["run", "round", "weights", "members", "asked"],
)
def test_no_stream_is_used_twice(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run, round, weight, set of members or thing that is asked: other masks throughout, so that a difference
    shows nothing, and other streams with *each* partner. Another form of the upload is other masks."""
    w, made, stream = Bundle(w=torch.arange(500)), list[bytes](), masks._stream

    def watched(key: bytes, count: int) -> Any:
        made.append(key)
        return stream(key, count)

    monkeypatch.setattr(masks, "_stream", watched)
    masks.masked(w, table(), 0, SECRETS[0])
    masks.masked(w, table(**changes), 0, SECRETS[0])
    assert len(set(made)) == len(made) == 2 + len(table(**changes).members) - 1
    first = masks.masked(w, table(), 0, SECRETS[0]).w
    assert not bool((masks.masked(w, table(**changes), 0, SECRETS[0]).w == first).any())
    assert not bool((masks.masked(Bundle(v=w.w), table(), 0, SECRETS[0]).v == first).any())
    assert torch.equal(w.w, torch.arange(500))


BAD_TABLES: dict[str, Any] = {
    "none": None,
    "no list": 3,
    "two": [list(m) for m in table().members[:2]],
    "one twice": [list(m) for m in (*table().members, table().members[0])],
    "one twice with another weight": [*map(list, table().members), [0, "00" * 32, 2.0]],
    "one key twice": [[i, table().members[0][1], 1] for i in range(3)],
    "no key": [[0, "x", 1], [1, "y", 1], [2, "z", 1]],
    "numbers as texts": [[str(i), key, 1] for i, key, _ in table().members],
    **{
        f"a weight {weight}": [[i, key, weight] for i, key, _ in table().members]
        for weight in (0, -1, float("nan"), float("inf"), True, "1")
    },
    "weights missing": [[i, key] for i, key, _ in table().members],
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_a_table_is_checked(what: str) -> None:
    """Nothing is masked for two, for the same member twice, or by weights that cannot be."""
    with pytest.raises(WireError):
        MemberTable.read(WireMessage({"run": "r", "round": 1, "setup": "", "pool": {"members": BAD_TABLES[what]}}))


def test_on_what_terms_a_site_masks() -> None:
    """A later round than the last one, its own key, and at most half of all weight."""
    key = table().members[1][1]
    t = table(members=tuple((i, k, w) for (i, k, _), w in zip(table().members, (3.0, 7.0, 4.0), strict=True)))
    t.require(1, key, 0)
    for number, own, last, code in ((1, key, 1, "masked"), (1, key[::-1], 0, "new-key"), (7, key, 0, "new-key")):
        with pytest.raises(Unmasked) as found:
            t.require(number, own, last)
        assert found.value.code == code
    with pytest.raises(Unmasked) as found:
        replace(t, members=(t.members[0], (1, key, 8.0), t.members[2])).require(1, key, 0)
    assert found.value.code == "settings"
    assert "8 of 15" in str(found.value)


def test_a_point_that_is_none_is_refused() -> None:
    """A public key of small order would make the shared secret zero for everybody."""
    bad = table(members=((0, "00" * 32, 1.0), *table().members[1:]))
    with refuses(WireError, "member 0"):
        masks.masked(Bundle(w=torch.zeros(3, dtype=torch.int64)), bad, 1, SECRETS[1])


# ---- runs ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", thorough_except(OFFERED, ["fedavg", "fedrod", "per-fedavg", "pfa", "oracle"]))
def test_hosts_equal_the_simulator(name: str, tmp_path: Path) -> None:
    """Methods that are offered it end on hosts as in the simulator, bit for bit: with one pool, uploads of several
    tensors, requests of their own kind, and pools by group."""
    tables = {
        "data": {"clients": 6, "plant": "labels@groups=2"} if name == "oracle" else {"clients": 4},
        "method": {"after": 2, "clusters": 1} if name == "pfa" else {},
        "hosts": {"min_clients": 6 if name == "oracle" else 4},
        "run": {"rounds": 3},
    }
    s = secure(name, **tables)
    ours, theirs = on_hosts(s, tmp_path, Direct(sites(tmp_path, tables["hosts"]["min_clients"]))), simulated(s)
    assert same_server(ours, theirs)
    assert ours.clients == theirs.clients
    assert ours.rounds == [changed(line, ari=None) if line.figures else line for line in theirs.rounds]
    assert any(line.answered for line in ours.rounds)


def test_what_travels_is_masked(tmp_path: Path) -> None:
    """No two uploads of a run have a number in common, although the models in them are close; each differs from the
    bare addend in every number."""
    heard = Heard("update")
    on_hosts(secure(), tmp_path, Direct(sites(tmp_path), touch=heard))
    sent = [bundle(answer).body.flatten() for *_, answer in heard.found]
    assert {t.dtype for t in sent} == {torch.int64}
    assert len(sent) == 12
    whole = torch.cat(sent)
    assert len(whole.unique()) == len(whole)
    assert float(whole.abs().double().log2().median()) > 61  # bare addends have about 30 binary places


@pytest.mark.parametrize("fault", ["message lost", "answer lost", "answer refused", "message doubled"])
def test_what_happens_to_a_message(fault: str, tmp_path: Path) -> None:
    """Without one upload the round is abandoned and the next one goes on; a message that comes twice is masked once."""
    s = secure()
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=happening(fault, lambda b: Bundle(body=b.body[1:]))))
    lost = fault != "message doubled"
    assert [line.abandoned for line in ours.rounds] == [False, lost, False, False]
    assert same_server(ours, traced(s, ours.rounds))
    assert ours.clients == traced(s, ours.rounds).clients
    if lost:
        assert refused(ours.rounds[1], "update")[0] == "pool-broken"


def test_late_ones_are_waited_for_again(tmp_path: Path) -> None:
    """Who was late once is a suspect, whom other rounds do not wait for; here nothing can be read without it."""
    late: list[float] = []

    touch = silent("update", "evaluate", rounds=[1, 2])
    post = Direct(sites(tmp_path), touch=touch)
    ours = on_hosts(secure("fedavg"), tmp_path, post, on_round=lambda report, line: late.append(post.time.now))
    assert [line.abandoned for line in ours.rounds] == [True, True, False, False]
    assert late[1] - late[0] >= 20  # the whole deadline a second time


# ---- servers and sites that come back -------------------------------------------------------------------------------
def test_another_set_of_members_for_the_same_round_is_refused(tmp_path: Path) -> None:
    """The server is killed in round 2 and comes back without c3: those who masked for four do not mask that round for
    three, whose sum would give away c3's upload by subtraction. The next round has three members and is used."""
    s = secure("fedavg", data={"clients": 4}, hosts={"min_clients": 4})
    post, answers = Direct(sites(tmp_path, 4)), list[tuple[str, WireMessage]]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if update(of, 2):
            answers.append((client, answer))
            if len(answers) == 4:
                raise Killed
        return answer

    post.touch = touch
    with pytest.raises(Killed):
        on_hosts(s, tmp_path, post)
    ours = on_hosts(s.but(min_clients=3), tmp_path, Direct(post.sites, touch=touch, off={103}))
    codes = [(client, a.head.get("code")) for client, a in answers[4:]]  # first of all they lack the new min_clients
    assert codes == [(f"c{i}", code) for code in ("setup", "masked") for i in range(3)]
    assert [list(line.answered) for line in ours.rounds] == [[0, 1, 2, 3], [], [0, 1, 2], [0, 1, 2]]


def test_no_masks_for_another_request_of_the_same_round(tmp_path: Path) -> None:
    """A server that asks a second time for round 2 with another model, other members or other weights gets no second
    upload, whatever session it says it is; the same request still gets the same answer."""
    s, tried = secure("fedavg", data={"clients": 4}, hosts={"min_clients": 4}), dict[str, WireMessage]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if client == "c0" and update(of, 2):
            head = {**of.head, "session": of.head["session"] + 1}
            b, pool = bundle(of), of.head["pool"]
            plain = {n: v for n, v in head.items() if n != "tensors"}
            tried["model"] = post.ask(client, wire_message(plain, Bundle(model=b.model + 1)))
            tried["members"] = post.ask(client, wire_message({**plain, "pool": {"members": pool["members"][:3]}}, b))
            more = [[i, key, weight + 1, *rest] for i, key, weight, *rest in pool["members"]]
            tried["weights"] = post.ask(client, wire_message({**plain, "pool": {"members": more}}, b))
            tried["bare"] = post.ask(client, wire_message({n: v for n, v in plain.items() if n != "pool"}, b))
            tried["same"] = post.ask(client, wire_message(plain, b))
            assert tried.pop("same").body == answer.body
        return answer

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path, 4), touch=touch))
    assert {what: a.head["code"] for what, a in tried.items()} == {
        **dict.fromkeys(("model", "members", "weights"), "masked"), "bare": "unreadable"
    }  # fmt: skip
    assert not any(a.body for a in tried.values())
    assert same_server(ours, simulated(s))


@pytest.mark.parametrize("disk", ["same", "empty", "of round 1"])
def test_a_site_that_comes_back(disk: str, tmp_path: Path) -> None:
    """A site that is made anew in round 3 has a new key, on the same disk, an empty one, and one of round 1: that round
    is abandoned, the next ones are not."""
    s, begun = secure("fedavg"), list[bool]()
    mine = tmp_path / "disks" / "c1"

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if client == "c1" and update(of, 2) and disk == "of round 1" and not (tmp_path / "old").exists():
            shutil.copytree(mine, tmp_path / "old")
        if client == "c1" and update(of, 3) and not begun:
            begun.append(True)
            if disk != "same":
                shutil.rmtree(mine)
            if disk == "of round 1":
                shutil.copytree(tmp_path / "old", mine)
            post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks")
        return post.ask(client, of)

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert [line.abandoned for line in ours.rounds] == [False, False, True, False]
    assert same_server(ours, traced(s, ours.rounds))
    told = [e["what"] for e in lines(tmp_path, "events") if "its key for masks is a new one" in e["what"]]
    assert len(told) == 1


def test_keys_are_of_one_run_and_one_process(tmp_path: Path) -> None:
    """The public ones are in the server's list; the private ones are in no message and on no disk; another run has
    others, and so has another process."""
    s, post, seen = secure("fedavg"), Direct(sites(tmp_path)), list[str]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        seen.append(json.dumps([of.head, answer.head]))
        return answer

    post.touch = touch
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        on_hosts(s, folder, post)
        listed = json.loads((folder / "run" / "clients.json").read_text())
        secrets = [post.sites[100 + i].mask_keys.secret(listed["run"]) for i in range(3)]
        assert [c["public"] for c in listed["clients"]] == [masks.public_of(secret) for secret in secrets]
        assert {ClientStore(tmp_path / "disks", f"c{i}").load(listed["run"]).masked for i in range(3)} == {4}
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        for secret in secrets:
            assert not any(secret.hex() in text for text in seen)
            assert not any(secret in content or secret.hex().encode() in content for content in files)
        found += [c["public"] for c in listed["clients"]]
        found += [masks.public_of(site.mask_keys.secret(listed["run"])) for site in sites(tmp_path).values()]
    assert len(set(found)) == 12


def test_a_newcomer_without_a_key_gets_no_number(tmp_path: Path) -> None:
    """It could not be added up with the others."""

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if client == "c3" and of.head["kind"] == "describe":
            return WireMessage({n: v for n, v in answer.head.items() if n != "public"}, answer.body)
        return answer

    s = secure("fedavg", data={"clients": 4})
    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path, 4), touch=touch))
    assert len(ours.server.sizes) == 3
    assert [e["what"] for e in lines(tmp_path, "events") if e["client"] == "c3"] == [
        "refused: it sent no public key, which secure aggregation needs"
    ]


def test_numbers_out_of_range_stay_on_their_host(tmp_path: Path) -> None:
    """A diverged training: a code, no numbers; the same words as in the simulator; the round is abandoned."""
    s = secure("fedavg")

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if client == "c1" and update(of, 2):
            plain = bare(of)
            answer = post.ask(client, wire_message(plain, Bundle(model=bundle(of).model * 1e9)))
            assert (answer.head["code"], answer.body) == ("not-summable", b"")
            assert set(answer.head) == {"format", "client", "kind", "run", "session", "seq", "ok", "code"}
            return answer
        return post.ask(client, of)

    ours = on_hosts(s, tmp_path, Direct(sites(tmp_path), touch=touch))
    assert refused(ours.rounds[1])[1] == "not-summable"
    assert [line.abandoned for line in ours.rounds] == [False, True, False, False]


def test_a_false_sum_is_not_used(tmp_path: Path) -> None:
    """An upload that is none makes the sum of all random: it is refused whole."""

    touch = changing("update", lambda b: Bundle({n: torch.zeros_like(t) for n, t in b.items()}), round=2)
    ours = on_hosts(secure("fedavg"), tmp_path, Direct(sites(tmp_path), touch=touch))
    assert [line.abandoned for line in ours.rounds] == [False, True, False, False]
    assert refused(ours.rounds[1]) == dict.fromkeys(range(3), "pool-numbers")


@pytest.mark.parametrize(
    ("name", "tables", "fact"),
    [
        ("da-pfl", {}, "DAPFL"),
        ("fedavg", {"hosts": {"min_clients": 2}}, "1 of 2 clients"),
        ("fedavg", {"aggregation": {"rule": "krum"}}, "'krum'"),
        ("fednova", {"training": {"optimizer": "adam"}}, "optimizer = 'adam'"),
    ],
)
def test_refused_before_anybody_is_asked(name: str, tables: dict[str, Any], fact: str, tmp_path: Path) -> None:
    """No folder, no message."""
    post = Direct(sites(tmp_path))
    with refuses(ConfigError, fact):
        on_hosts(secure(name, **tables), tmp_path, post)
    assert post.log == []
    assert not (tmp_path / "run").exists()
