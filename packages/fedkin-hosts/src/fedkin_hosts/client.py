"""The client's side on its own host: answers one message at a time from its data, its disk and what it was sent.

Errors are written to this host's log. The server receives a code and nothing else: the text of an exception can
contain data.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from fedkin.core import Bundle, ClientError, ConfigError, DataError, FedkinError
from fedkin.core.grammar import Table, subtable
from fedkin.core.refusals import OfHost
from fedkin.core.samples import ClientData
from fedkin.data import Card, SiteData, resolved, seeded
from fedkin.engines import Job, Task
from fedkin.engines.loop import trainer
from fedkin.engines.tasks import Answer
from fedkin.engines.turns import perform
from fedkin.experiment.prepare import Experiment
from fedkin.experiment.settings import DataSettings, Settings, digest, method_of, table_of, title_of
from fedkin.exporting.card import ExportSource, Taken
from fedkin.exporting.folder import write_export
from fedkin.exporting.ranges import of_client
from fedkin.privacy.budget import Privacy, Spent, reports_at_joining
from fedkin.privacy.secure_sum import OutOfRange, SecureGroup, fixed
from fedkin.server.ledger import OutOfStep
from fedkin.server.requirements import require
from fedkin_hosts.allowed_code import Allowed, NotAllowed, settings_of, versions
from fedkin_hosts.client_memory import ClientStore, Kept
from fedkin_hosts.heads import FORMAT, Json, RequestHead, RunSetup, WireError, WireMessage, decode, refusal, stamp
from fedkin_hosts.masks import MaskKeys, MemberTable, Signing, Unmasked, masked
from fedkin_hosts.privacy_budget import Account, OverBudget, PrivacyLimits
from fedkin_hosts.tensors import bundle, mark, wire_message

log = logging.getLogger("fedkin.site")

# the code that the server receives for an exception, and the line for the log here; the first matching entry counts
_CODES: Sequence[tuple[type[Exception], OfHost, str]] = (
    (OutOfRange, "not-summable", "%s"),
    (OverBudget, "budget", "%s"),
    (NotAllowed, "code", "%s"),
    (KeyError, "unreadable", "a message that cannot be read: no %s"),
    (WireError, "unreadable", "a message that cannot be read: %s"),
    (DataError, "data", "%s"),
    (OSError, "disk", "the disk: %s"),
    (ClientError, "failed", "%s"),
    (FedkinError, "settings", "%s"),
    (Exception, "failed", "this step failed: %s"),
)
_UNEXPECTED = (KeyError, Exception)  # the cause of these is found from a traceback only


class _UnknownSetup(Exception):
    """A message names a setup that this client does not have."""


class ClientService:
    """One client.

    Args:
        client: name of the client in the federation.
        data: data of the client.
        folder: folder that receives a sub-folder with the client's name for everything that it stores.
        limits: limits that the owner of the data sets.
        allowed: code that runs may name. Default: built-in methods and networks only.
        signing: key that signs its keys for masks, and the other clients whose signatures it requires.
    """

    def __init__(
        self,
        client: str,
        data: SiteData,
        folder: Path,
        limits: PrivacyLimits | None = None,
        allowed: Allowed | None = None,
        signing: Signing | None = None,
    ) -> None:
        self.client, self.data, self.folder, self.limits = client, data, folder, limits or PrivacyLimits()
        self.allowed = allowed or Allowed()
        self.mask_keys = MaskKeys(client, signing or Signing())
        self.store = ClientStore(folder, client)
        self.account = Account(folder, client, self.limits.max_epsilon, self.limits.max_metadata_epsilon)
        self._job: tuple[tuple[str, int], Job] | None = None
        self._setup: tuple[RunSetup, Settings] | None = None  # the last one that was used
        self._reported: dict[str, tuple[int, Tensor]] = {}  # by run: the last evaluated round, the counts reported
        self._over: set[tuple[str, str]] = set()  # runs and kinds of messages for which the budget was exceeded

    def answer(self, of: WireMessage) -> WireMessage:
        """Return the answer to a message; never raises for the content of a message, of the data or of the disk."""
        head = of.head
        try:
            if head.get("format") != FORMAT:
                return self._no(head, "versions")
            asked = decode(of, RequestHead)
            return self._steps[asked.kind](self, asked, of)
        except Exception as e:  # includes everything that a user-defined method may raise
            return self._refused(head, e)

    def _refused(self, head: Json, e: Exception) -> WireMessage:
        """Log what went wrong here and return the answer with its code."""
        if isinstance(e, OutOfStep):
            log.warning("%s", e)
            return self._no(head, "out-of-step", have=e.at)
        if isinstance(e, _UnknownSetup):
            return self._no(head, "setup")
        if isinstance(e, Unmasked):
            log.warning("round %s: %s", head.get("round"), e)
            return self._no(head, e.code, **e.more)
        if isinstance(e, OverBudget):
            self._over.add((str(head.get("run")), str(head.get("kind"))))
        kind, code, words = next(line for line in _CODES if isinstance(e, line[0]))
        log.error(words, e, exc_info=e if kind in _UNEXPECTED else None)
        return self._no(head, code)

    def _no(self, head: Json | RequestHead, code: OfHost, **more: Any) -> WireMessage:
        return refusal(msgspec.to_builtins(head) if isinstance(head, RequestHead) else head, self.client, code, **more)

    def _withheld(self, head: RequestHead) -> WireMessage:
        log.info("no results of an evaluation leave: this node was started with --keep-scores")
        return self._no(head, "keeps-scores")

    def _yes(self, head: RequestHead, b: Bundle | None = None, **more: Any) -> WireMessage:
        return wire_message({**stamp(msgspec.to_builtins(head), self.client), "ok": True, **more}, b)

    # ---- the steps ------------------------------------------------------------------------------------------------
    def _hello(self, head: RequestHead, of: WireMessage) -> WireMessage:
        """Report this client's name, its versions, and the card of its data."""
        settings = self._settings(head)
        require(settings, method := method_of(settings))
        card = self.data.card(self._sharing(settings))
        self.limits.check_card(card)
        return self._yes(head, versions=versions(method), card=card.to_json())

    def _describe(self, head: RequestHead, of: WireMessage) -> WireMessage:
        """Answer with the client's description, made once per run and repeated identically if asked again."""
        kept = self._kept(head)
        job = self._job_of(head)
        if kept.said is None:
            privacy = self._privacy(head)
            if privacy.metadata_epsilon is not None and reports_at_joining(job.method, job.net):
                own = job.shards[head.client].at(head.round).train.counts(job.net.classes)
                counts = self.account.release(head.run, own, privacy.metadata_epsilon, privacy.delta)
                job = replace(job, count_noise=lambda *_: counts)
            kept.said = self._perform(job, head, of, Bundle()).reply
            self.store.save(head.run, kept)
        return self._yes(head, kept.said, **self._public(head))

    def _survey(self, head: RequestHead, of: WireMessage) -> WireMessage:
        epsilon, delta = self._privacy(head).metadata_epsilon, self._privacy(head).delta
        hidden = epsilon is not None and self.limits.max_metadata_epsilon is not None
        if self.limits.keep_scores and head.kind == "consult" and not hidden:  # figures of models on held-out samples
            return self._withheld(head)
        kept, job = self._kept(head), self._job_of(head)
        if epsilon is not None:
            job = replace(job, choice_noise=lambda _, j, of: self.account.choose(head.run, j, of, epsilon, delta))
        try:
            answer = self._perform(job, head, of, kept.ledger.state(head.ack))
            return self._yes(head, answer.reply, **self._spent(head, answer.spent))
        except ClientError as e:
            if isinstance(e.__cause__, OverBudget | OSError):  # of the account, not of the method's program
                raise e.__cause__ from e
            raise

    def _update(self, head: RequestHead, of: WireMessage) -> WireMessage:
        kept = self._kept(head)
        key = self._public(head)
        new, ledger = head.session > kept.session, kept.ledger
        if not new and ledger.late(head.seq):
            return self._no(head, "late", have=ledger.at)
        # numbers that the content does not depend on are left out: a restarted server sends the same
        parts = ("run", "round", "client", "ack", "tensors", *(["pool"] if key else []))
        marked = mark(WireMessage({n: of.head[n] for n in parts}, of.body))
        former = ledger.begin(head.seq, head.ack, marked)
        if former is not None:
            log.info("round %s was answered before; the same answer again", head.round)
            return self._yes(head, former, **self._spent(head, {}))
        job = self._job_of(head)
        table = MemberTable.read(of) if key else None
        if table is not None:
            last = max(kept.masked, self.mask_keys.last(head.run))
            table.require(head.client, key["public"], last, key.get("signature", ""))
            self.mask_keys.require_peers(table, head.client)
        answer = self._perform(job, head, of, ledger.committed)
        spent = self._spent(head, answer.spent)
        reply = answer.reply if table is None else self._masked(answer.reply, table, head.client, kept)
        ledger.propose(head.seq, answer.state, reply, marked)
        kept.session = max(kept.session, head.session)
        self.store.save(head.run, kept)
        return self._yes(head, reply, training_s=round(answer.training_s, 3), **spent)

    def _evaluate(self, head: RequestHead, of: WireMessage) -> WireMessage:
        if self.limits.keep_scores:
            return self._withheld(head)
        kept = self._kept(head)
        answer, reply = self._perform(self._job_of(head), head, of, kept.ledger.state(head.ack)), Bundle()
        self._reported[head.run] = head.round, answer.reply.test
        if self._privacy(head).asked or self.limits.hides_counts:  # of the training samples: those reported, or none
            reply = Bundle(counts=self.account.counts_of(head.run, len(answer.reply.counts)))
        return self._yes(head, answer.reply.but(**reply), **self._spent(head, answer.spent))

    def _keep(self, head: RequestHead, of: WireMessage) -> WireMessage:
        """Store the model that this client predicts with, for use without fedkin's server."""
        kept, job = self._kept(head), self._job_of(head)
        answer = self._perform(job, head, of, kept.ledger.state(head.ack))
        place = self._write_export(head, job, answer.reply, self._evaluation(head, of, job, kept))
        log.info("the model of %s is in %s (fedkin predict THIS_FOLDER FILE uses it)", self.client, place)
        if (privacy := self._privacy(head)).asked:
            log.info("%s", self.account.words(head.run, privacy.delta))
        return self._yes(head)

    # ---- parts ----------------------------------------------------------------------------------------------------
    def _write_export(self, head: RequestHead, job: Job, model: Bundle, reported: Tensor | None) -> Path:
        """Write the model that this client predicts with, as ``fedkin export`` does, and return its folder.

        It contains nothing of other clients except what is in the model itself. An existing export is replaced.

        Args:
            reported: counts per class ``[3, C]`` on the test part as reported to the server, if that is known.

        Raises:
            ConfigError, RunFolderError, OSError: see `write_export`.
        """
        (setup, settings), place = self._setup_of(head), self.store.path(head.run).parent / "model"
        number, how, table, card = head.client, self._sharing(settings), table_of(settings), Card.from_json(setup.card)
        origin = ExportSource(
            method=job.method,
            net=job.net,
            title=title_of(settings),
            table=table,
            marks={"config": digest(table), "network": setup.network, "run": head.run},
            round=head.round,
            rounds=settings.run.rounds,
            seed=settings.run.seed,
            data=self.data.name(how),
            labels=card.labels,
        )
        made, shard = self.data.preparation(card, number, how), job.shards[number].at(head.round)
        taken = Taken(
            bundle=model,
            preparation=made,
            client=number,
            name=self.client,
            shard=shard,
            ranges=None if settings.privacy.asked else of_client(shard, made),
            evaluated=reported,
        )
        write_export(origin, taken, place, force=True)
        for left in place.parent.glob(f".{place.name}.*"):  # left by a worker that was ended while it wrote
            shutil.rmtree(left, ignore_errors=True)
        return place

    def _sharing(self, settings: Settings) -> DataSettings:
        """Return how a run wants this site's data read and split.

        The run's name for its data is ignored: a message must not make a site look for paths on its disk.
        """
        return resolved(seeded(settings.data.but(data=self.data.data), settings.run.seed))

    def _evaluation(self, head: RequestHead, of: WireMessage, job: Job, kept: Kept) -> Tensor | None:
        """Return the counts per class ``[3, C]`` that were reported of the round whose model is kept.

        A process that was restarted since then evaluates again, with an equal result; not after private training, which
        would train with different noise.
        """
        round, result = self._reported.get(head.run, (-1, None))
        if round == head.round:
            return result
        if job.private is not None:
            return None
        again = msgspec.structs.replace(head, kind="evaluate")
        return self._perform(job, again, of, kept.ledger.state(head.ack)).reply.test

    def _setup_of(self, head: RequestHead) -> tuple[RunSetup, Settings]:
        """Return the setup that a message names, and its settings: they name allowed code and stay within the owner's
        limits, which is checked when this process uses it for the first time.

        Raises:
            _UnknownSetup: this client does not have it.
        """
        if self._setup is None or self._setup[0].name != head.setup:
            setup = head.inline or self.store.setup(head.run)
            if setup is None or setup.name != head.setup:
                raise _UnknownSetup
            settings = settings_of(setup.settings, self.allowed)
            self.limits.check(settings)
            self.limits.check_method(method_of(settings))
            self._setup = setup, settings
        return self._setup

    def _settings(self, head: RequestHead) -> Settings:
        return self._setup_of(head)[1]

    def _kept(self, head: RequestHead) -> Kept:
        kept = self.store.load(head.run)
        if head.session < kept.session:
            log.warning(
                "a message of an earlier start of the server than the last one: its run folder is an older copy, or "
                "its clock was set back"
            )
            raise OutOfStep(kept.ledger.at, head.ack)
        setup, _ = self._setup_of(head)
        of = _kind_of_run(setup.settings)
        if kept.of not in ("", of):
            raise ConfigError(
                f"run {head.run} was begun here with other settings. What a client keeps under one "
                "method may be what it sends under another, so they cannot change on the way; submit it as a new run"
            )
        kept.of = of
        if head.inline is not None:
            self.store.keep_setup(head.run, setup)
        return kept

    def _public(self, head: RequestHead) -> dict[str, str]:
        """Return this client's public key for masks in a run with secure aggregation, and nothing in others."""
        return self.mask_keys.public_of(head.run) if self._settings(head).aggregation.secure else {}

    def _masked(self, upload: Bundle, table: MemberTable, number: int, kept: Kept) -> Bundle:
        """Return an upload as a masked addend; its round counts as masked from here on, here and on the disk."""
        addend = fixed(upload, SecureGroup((), table.weight(number), table.total))
        self.mask_keys.used(table.run, table.round)
        kept.masked = table.round
        return masked(addend, table, number, self.mask_keys.secret(table.run))

    def _privacy(self, head: RequestHead) -> Privacy:
        return self._settings(head).privacy

    def _spent(self, head: RequestHead, spent: Spent) -> dict[str, Any]:
        """Return the total that private training has spent in this run including this answer, for the answer's head; it
        is on the disk before the answer leaves."""
        privacy = self._privacy(head)
        if privacy.noise_multiplier is None:
            return {}
        used = self.account.spend(head.run, privacy.noise_multiplier, spent, privacy.delta)
        return {"spent": [[rate, n] for rate, n in used.spent(privacy.noise_multiplier).items()]}

    def _perform(self, job: Job, head: RequestHead, of: WireMessage, state: Bundle) -> Answer:
        assert head.kind != "hello"
        if (head.run, head.kind) in self._over:
            raise OverBudget(f"no further answers to run {head.run}: its budget is spent")
        task = Task(head.kind, head.client, head.round, bundle(of), state)
        return perform(job, task, trainer(job))

    def _job_of(self, head: RequestHead) -> Job:
        """Return data, network and method of a run; made once and reused while messages ask for the same."""
        key = head.setup, head.client
        if self._job is None or self._job[0] != key:
            self._job = (key, self._made(*self._setup_of(head), head))
        return self._job[1]

    def _made(self, setup: RunSetup, settings: Settings, head: RequestHead) -> Job:
        card = Card.from_json(setup.card)
        self.limits.check_card(card)
        shard = self.data.shard(card, head.client, self._sharing(settings))
        e = Experiment.on_hosts(settings, card, head.run, shard.train.x[:2])
        if e.networks != setup.network:
            raise DataError(
                "the network built here has other initial values than the server's: other versions of torch, or "
                "another file of the model"
            )
        self.limits.check_reports(settings.privacy, e.method, e.net)
        (mine,) = e.laid_out([shard])
        job = e.job(_One(head.client, mine), outcomes=not self.limits.hides_counts, secret=True)
        sizes = [len(part) for part in (shard.train, shard.validation, shard.test)]
        log.info("%s: %d training, %d validation, %d test samples", self.client, *sizes)
        return job

    _steps: Mapping[str, Callable[[ClientService, RequestHead, WireMessage], WireMessage]] = {
        "hello": _hello,
        "describe": _describe,
        "survey": _survey,
        "consult": _survey,
        "update": _update,
        "evaluate": _evaluate,
        "keep": _keep,
    }


def _kind_of_run(table: Table) -> str:
    """Return a fingerprint of the settings that must not change during a run; the run may become longer."""
    run = {n: v for n, v in subtable(table, "run").items() if n not in ("rounds", "eval_every")}
    return digest({**table, "run": run})


class _One(Sequence[ClientData]):
    """The federation as one client sees it: itself only."""

    def __init__(self, number: int, shard: ClientData) -> None:
        self._number, self._shard = number, shard

    def __len__(self) -> int:
        return self._number + 1

    def __getitem__(self, number: Any) -> Any:
        if number != self._number:
            raise IndexError(number)
        return self._shard
