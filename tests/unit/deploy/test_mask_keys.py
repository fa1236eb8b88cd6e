"""Masks against those who look twice or lie: restored snapshots, the owner's terms, keys that known clients signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.core import Bundle, ConfigError
from fedkin.core.refusals import Reason
from fedkin.data import SiteData
from fedkin.experiment.settings import Settings
from fedkin_hosts import keys, masks
from fedkin_hosts.client import ClientService
from fedkin_hosts.heads import RunSetup, WireMessage
from fedkin_hosts.masks import MaskKeys, MemberTable, Signing, Unmasked
from fedkin_hosts.node import Node
from fedkin_hosts.privacy_budget import PrivacyLimits
from fedkin_hosts.tensors import bundle, wire_message
from hosttoys import Direct, Heard, bare, greeting, lines, of_worker, on_hosts, same_server, settings, simulated, sites
from refusals import refuses

ROOT = Path(__file__).parents[3]


def secure(**tables: Any) -> Settings:
    return settings(
        "fedavg", **{**tables, "run": {"rounds": 2, **tables.get("run", {})}, "aggregation": {"secure": True}}
    )


def again(of: WireMessage, more: float, public: str | None = None) -> WireMessage:
    """The same request with another model, and with another key of its receiver if one is given."""
    head = bare(of)
    head["session"] += 1
    if public is not None:
        members = [[i, public if i == head["client"] else key, w] for i, key, w, *_ in head["pool"]["members"]]
        head["pool"] = {"members": members}
    return wire_message(head, Bundle(model=bundle(of).model + more))


# ---- restored snapshots --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("process", ["new", "same"])
def test_a_restored_snapshot_gives_no_difference_of_uploads(process: str, tmp_path: Path) -> None:
    """A server that puts the disk of c1 back to before round 2, and asks for round 2 again with another model, learns
    nothing of the difference of the two uploads, in a new process, whose new key it takes over, and in the same one."""
    mine, found = tmp_path / "disks" / "c1", dict[str, WireMessage]()

    def attack(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if client != "c1" or of.head["kind"] != "update" or of.head["round"] != 2:
            return post.ask(client, of)
        shutil.copytree(mine, tmp_path / "snapshot")
        answer = found["first"] = post.ask(client, of)
        shutil.copytree(mine, tmp_path / "after")
        shutil.rmtree(mine)
        shutil.copytree(tmp_path / "snapshot", mine)
        if process == "new":
            post.sites[101] = ClientService("c1", SiteData("digits", share=1), tmp_path / "disks")
        refused = found["refused"] = post.ask(client, again(of, 0.5))
        found["second"] = post.ask(client, again(of, 0.5, refused.head.get("public")))
        return answer

    on_hosts(secure(), tmp_path, Direct(sites(tmp_path), touch=attack))
    assert found["refused"].body == b""
    if process == "same":
        assert [found[which].head["code"] for which in ("refused", "second")] == ["masked", "masked"]
        assert found["second"].body == b""
        return
    assert found["refused"].head["code"] == "new-key"
    difference = bundle(found["second"]).model - bundle(found["first"]).model
    # a difference of bare addends is about 0.5 * 2^34 / 3 everywhere; one of random numbers is near 2^63
    assert float(difference.abs().double().log2().median()) > 61
    assert len(difference.unique()) == len(difference)


# ---- the owner's terms ---------------------------------------------------------------------------------------------
def test_only_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A node with --only-masked takes part in a run with masks, and refuses one without, from its first message on and
    in a run that a server turns into one without on its way."""
    limits, bare = PrivacyLimits(only_masked=True), list[WireMessage]()

    def lie(post: Direct, client: str, of: WireMessage) -> WireMessage:
        answer = post.ask(client, of)
        if of.head["kind"] == "update":
            plain = post.altered(of, aggregation={"secure": False}).head
            head = {n: v for n, v in plain.items() if n not in ("pool", "tensors")}
            bare.append(post.ask(client, wire_message({**head, "seq": head["seq"] + 1}, bundle(of))))
        return answer

    post = Direct(sites(tmp_path, limits=limits), touch=lie)
    ours = on_hosts(secure(run={"rounds": 1}), tmp_path, post)
    assert list(ours.rounds[0].answered) == [0, 1, 2]
    assert [(a.head["code"], a.body) for a in bare] == [("settings", b"")] * 3
    assert "the run asks for uploads without masks" in caplog.text
    assert "--only-masked" in caplog.text


def test_a_worker_asks_for_masks(tmp_path: Path) -> None:
    """The flag reaches the process that answers messages."""
    letters = greeting(tmp_path), greeting(tmp_path, aggregation={"secure": True})
    answers = [of_worker(tmp_path, of, share=0, only_masked=True) for of in letters]
    assert [answer.head.get("code") for answer in answers] == ["settings", None]


def test_scores_stay_with_their_owner(tmp_path: Path) -> None:
    """With --keep-scores a client trains and keeps its model, and no result of an evaluation leaves; the run ends with
    the same models."""
    s = settings("fedrep", run={"rounds": 3, "eval_every": 1})
    heard = Heard("evaluate")
    post = Direct(sites(tmp_path), touch=heard)
    post.sites[101] = ClientService(
        "c1", SiteData("digits", share=1), tmp_path / "disks", PrivacyLimits(keep_scores=True)
    )
    ours = on_hosts(s, tmp_path, post)
    assert same_server(ours, simulated(s))
    assert [(a.head["code"], a.body) for a in heard.of("c1")] == [("keeps-scores", b"")] * 3
    assert {line.client for line in ours.clients} == {0, 2}
    assert any(str(Reason("keeps-scores")) in e["what"] for e in lines(tmp_path, "events") if e["client"] == "c1")
    assert len(list((tmp_path / "disks" / "c1").glob("*/model/card.json"))) == 1


# ---- keys that known clients signed --------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys of three nodes, and what each has got of the two others."""
    for i in range(3):
        keys.make_node_key(tmp_path / "private", f"c{i}")
    for i in range(3):
        (tmp_path / f"peers-{i}").mkdir()
        for j in {0, 1, 2} - {i}:
            shutil.copy(tmp_path / "private" / f"c{j}.pub", tmp_path / f"peers-{i}")
    return tmp_path


def signed_sites(folder: Path) -> dict[int, ClientService]:
    """Sites that sign their keys and ask for the signatures of the others."""
    return {
        100 + i: ClientService(
            f"c{i}",
            SiteData("digits", share=i),
            folder / "disks",
            PrivacyLimits(only_masked=True),
            signing=Signing(folder / "private" / f"c{i}", folder / f"peers-{i}"),
        )
        for i in range(3)
    }


def test_a_run_among_clients_that_know_each_other(folder: Path) -> None:
    """Keys that were signed with the nodes' keys are taken, and the run ends with the simulator's bits."""
    s = secure(run={"rounds": 3})
    ours = on_hosts(s, folder, Direct(signed_sites(folder)))
    assert [line.answered for line in ours.rounds] == [(0, 1, 2)] * 3
    assert same_server(ours, simulated(s))
    listed = json.loads((folder / "run" / "clients.json").read_text())["clients"]
    assert all(len(base64.b64decode(m["signature"])) > 90 for m in listed)


def test_a_restarted_client_signs_its_new_key(folder: Path) -> None:
    """A new process has a new key with a new signature: one round is abandoned, and the next is used."""
    s, begun = secure(run={"rounds": 3}), list[bool]()

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if (client, of.head["kind"], of.head["round"]) == ("c1", "update", 2) and not begun:
            begun.append(True)
            post.sites[101] = signed_sites(folder)[101]
        return post.ask(client, of)

    ours = on_hosts(s, folder, Direct(signed_sites(folder), touch=touch))
    assert [line.abandoned for line in ours.rounds] == [False, True, False]


@pytest.mark.parametrize("lie", ["keys of its own", "no signatures", "of another run", "one client twice"])
def test_a_server_in_the_middle_reads_nothing(lie: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that puts its own keys into the table, leaves signatures out, repeats one of another run, or lists one
    client twice gets no upload of a client that knows the others; the log names the member and the folder."""
    middle, asked = [bytes([i]) * 32 for i in (7, 8, 9)], list[WireMessage]()
    former = {i: MaskKeys(f"c{i}", Signing(folder / "private" / f"c{i}")).public_of("another run") for i in range(3)}

    def touch(post: Direct, client: str, of: WireMessage) -> WireMessage:
        if of.head["kind"] != "update":
            return post.ask(client, of)
        mine, members = of.head["client"], []
        for i, public, weight, name, signature in of.head["pool"]["members"]:
            if i == mine:
                members.append([i, public, weight, name, signature])
            elif lie == "keys of its own":
                members.append([i, masks.public_of(middle[i]), weight, name, signature])
            elif lie == "no signatures":
                members.append([i, public, weight])
            elif lie == "of another run":
                members.append([i, former[i]["public"], weight, name, former[i]["signature"]])
            else:
                other = post.sites[100 + (mine + 1) % 3]
                told = MaskKeys(other.client, other.mask_keys._signing).public_of(of.head["run"])
                members.append([i, told["public"], weight, other.client, told["signature"]])
        answer = post.ask(client, WireMessage({**of.head, "pool": {"members": members}}, of.body))
        asked.append(answer)
        return answer

    ours = on_hosts(secure(run={"rounds": 1}), folder, Direct(signed_sites(folder), touch=touch))
    assert [(a.head["code"], a.body) for a in asked] == [("strangers", b"")] * 3
    assert ours.rounds[0].abandoned
    assert f"is not signed by a client whose key is in {folder / 'peers-0'}" in caplog.text
    assert not any(str(folder) in json.dumps(a.head) for a in asked)


def test_who_asks_for_no_signatures_takes_all(folder: Path) -> None:
    """Without --peers the members that a server names are taken, signed or not."""
    table = MemberTable("run", 1, tuple((i, masks.public_of(bytes([i + 1]) * 32), 1.0) for i in range(3)), "asked")
    MaskKeys("c0", Signing()).require_peers(table, 0)
    with pytest.raises(Unmasked):
        MaskKeys("c0", Signing(peers=folder / "peers-0")).require_peers(table, 0)


# ---- flags ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"only_masked": False}, ["--peers", "--only-masked"]),
        ({"peers": Path("nowhere")}, ["--peers nowhere"]),
        ({"peers": Path("few")}, ["--peers few", "1 other clients (c1)", "at least 2"]),
        ({"peers": Path("damaged")}, ["damaged/c2.pub"]),
        ({"key": Path("peers-0/c1.pub")}, ["peers-0/c1.pub"]),
    ],
)
def test_terms_that_cannot_be(
    changes: dict[str, Any], facts: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node says at its start what is missing for what it was asked to insist on."""
    monkeypatch.chdir(folder)
    for name in ("few", "damaged"):
        Path(name).mkdir()
        shutil.copy("private/c1.pub", name)
    Path("damaged/c2.pub").write_text("ssh-rsa nonsense")
    Path("few/c0.pub").write_bytes(Path("private/c0.pub").read_bytes())
    good: dict[str, Any] = {"ca": Path("private/c0.pub"), "key": Path("private/c0")}
    good |= {"only_masked": True, "peers": Path("peers-0")}
    Node(data="digits", client_id="c0", **good)
    with refuses(ConfigError, *facts):
        Node(data="digits", client_id="c0", **{**good, **changes})


# ---- test vectors --------------------------------------------------------------------------------------------------
def test_the_vectors_of_the_page() -> None:
    """docs/security.md's test vectors are what this program computes, and what RFC 5869 written out gives."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    block = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert block is not None
    told = json.loads(block.group(1))
    secrets = [bytes.fromhex(k) for k in told["private"]]
    assert [masks.public_of(k) for k in secrets] == told["public"]
    context = told["context"]
    info = hashlib.sha256(context.encode()).digest()
    assert info.hex() == told["info"]
    first = hmac.new(bytes(32), bytes.fromhex(told["shared 0-1"]), "sha256").digest()
    assert hmac.new(first, info + b"\x01", "sha256").hexdigest() == told["key 0-1"]
    stream = next(masks._stream(bytes.fromhex(told["key 0-1"]), 3)).tolist()
    assert [str(n) for n in stream] == told["stream 0-1"]
    members = [[i, public, 1.0] for i, public in enumerate(told["public"])]
    head = {"run": "run", "round": 1, "pool": {"members": members}, **told["request"]}
    table = MemberTable.read(WireMessage(head, bytes.fromhex(told["body"])))
    name = hashlib.blake2b(told["setup text"].encode(), digest_size=16).hexdigest()
    assert name == told["request"]["setup"] == RunSetup(**told["setup"]).name
    asked = told["asked text"].encode() + bytes.fromhex(told["body"])
    assert table.asked == hashlib.sha256(asked).hexdigest() == told["asked"]
    addend = Bundle(w=torch.tensor(told["addend"], dtype=torch.int64))
    sent = [masks.masked(addend, table, i, secrets[i]).w for i in range(3)]
    assert [[str(n) for n in t.tolist()] for t in sent] == told["masked"]
    assert (sent[0] + sent[1] + sent[2]).tolist() == [3 * n for n in told["addend"]]
    assert json.loads(context) == ["fedkin masks 2", "run", 1, members, told["asked"], [["w", [3]]]]
