"""A client's model on its own host: the folder that ``fedkin export`` writes, from what this client has and received.

It contains nothing of other clients except what is in the model itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor

from fedkin.core import Bundle
from fedkin.data import Card, SiteData, resolved, seeded
from fedkin.engines import Job
from fedkin.experiment.settings import DataSettings, Settings, digest, table_of, title_of
from fedkin.exporting.card import ExportSource, Taken
from fedkin.exporting.folder import write_export
from fedkin.exporting.ranges import of_client
from fedkin_hosts.heads import RequestHead, RunSetup


def sharing_at(settings: Settings, data: SiteData) -> DataSettings:
    """Return how a run wants a site's data read and split.

    The run's name for its data is ignored: a message must not make a site look for paths on its disk.
    """
    return resolved(seeded(settings.data.but(data=data.data), settings.run.seed))


def take_home(
    place: Path,
    client: str,
    settings: Settings,
    data: SiteData,
    setup: RunSetup,
    head: RequestHead,
    job: Job,
    model: Bundle,
    reported: Tensor | None,
) -> None:
    """Write the model that a client predicts with; an existing export is replaced.

    Args:
        place: folder of the export.
        client: name of the client.
        settings: settings of the run.
        data: data of the client, as read for ``job``.
        setup: setup of the run.
        head: head of the message that asks for it.
        job: the run at this host.
        model: model that the client predicts with.
        reported: counts per class ``[3, C]`` on the test part as reported to the server, if that is known.

    Raises:
        ConfigError, RunFolderError, OSError: see `write_export`.
    """
    number, how, table = head.client, sharing_at(settings, data), table_of(settings)
    card = Card.from_json(setup.card)
    origin = ExportSource(
        method=job.method,
        net=job.net,
        title=title_of(settings),
        table=table,
        marks={"config": digest(table), "network": setup.network, "run": head.run},
        round=head.round,
        rounds=settings.run.rounds,
        seed=settings.run.seed,
        data=data.name(how),
        labels=card.labels,
    )
    made, shard = data.preparation(card, number, how), job.shards[number].at(head.round)
    taken = Taken(
        bundle=model,
        preparation=made,
        client=number,
        name=client,
        shard=shard,
        ranges=None if settings.privacy.asked else of_client(shard, made),
        evaluated=reported,
    )
    write_export(origin, taken, place, force=True)
    for left in place.parent.glob(f".{place.name}.*"):  # left by a worker that was ended while it wrote
        shutil.rmtree(left, ignore_errors=True)
