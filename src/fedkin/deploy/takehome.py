"""A client's model on its own host: the folder that ``fedkin export`` writes, of what this client has and was sent.

Of other clients there is nothing in it but what is in the model itself.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedkin.core import Bundle
from fedkin.data import Card, SiteData
from fedkin.data.sites import Sharing
from fedkin.deploy.heads import Asked
from fedkin.engines import Job
from fedkin.experiment.settings import Settings, digest
from fedkin.exporting.folders import write_export
from fedkin.exporting.ranges import of_client
from fedkin.exporting.rules import rule
from fedkin.exporting.taken import Origin, Taken
from fedkin.methods import get_title


def sharing_at(settings: Settings, data: SiteData) -> Sharing:
    """Return how a run wants a site's data read and split.

    What the run calls its data is nothing to a site: a letter must not make it look for paths on its disk.
    """
    return replace(settings.data, data=data.data).sharing(settings.run.seed)


def take_home(
    place: Path,
    client: str,
    settings: Settings,
    data: SiteData,
    head: Asked,
    job: Job,
    model: Bundle,
    reported: Tensor | None,
) -> None:
    """Writes what a client predicts with; an export that is there from before is replaced.

    Args:
        place: the folder.
        client: what the client is called.
        settings: those of the run.
        data: its data, as they were read for ``job``.
        head: of the letter that asks for it.
        job: the run at this host.
        model: what the client predicts with.
        reported: its confusion matrix ``[C, C]`` on the test part as the server was told it, if that is known.

    Raises:
        ConfigError: a method that predicts by code of its own.
        EngineError, RunFolderError, OSError: see `write_export`.
    """
    number, how, table = head.client, sharing_at(settings, data), settings.table()
    card = Card.from_json(head.card)
    origin = Origin(
        method=job.method,
        net=job.net,
        title=get_title(settings.name),
        table=table,
        marks={"config": digest(table), "network": head.network, "run": head.run},
        round=head.round,
        rounds=settings.run.rounds,
        seed=settings.run.seed,
        data=data.name(how),
        labels=card.labels,
    )
    made, shard = data.preparation(card, number, how), job.shards[number]
    taken = Taken(
        bundle=model,
        rule=rule(job.method),
        preparation=made,
        client=number,
        name=client,
        shard=shard,
        ranges=None if settings.privacy.asked else of_client(shard, made),
        evaluated=reported,
    )
    write_export(origin, taken, place, force=True)
    for left in place.parent.glob(f".{place.name}.*"):  # of a worker that was ended while it wrote
        shutil.rmtree(left, ignore_errors=True)
