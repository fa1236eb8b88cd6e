"""The first screen's sentences and four figures, for one method: for whom it paid, and by how much."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedkin.evaluate import Spread, spread
from fedkin.report import pictures, references
from fedkin.report.dots import WORDS
from fedkin.report.first import NAMED
from fedkin.report.folder import Run
from fedkin.report.headline import ended_early, ending, headline, rounds_of
from fedkin.report.page_data import PageData
from fedkin.report.references import FEDAVG, alone
from fedkin.report.standings import Standing
from fedkin.report.wording import against, named, points, ranged, share, short_mb, signed, tight

Text = list[tuple[str, str]]
"""Parts of a sentence with the class that colours them."""


@dataclass(frozen=True)
class Scene:
    """What the first screen needs of a page.

    Attributes:
        report: content of the page.
        reference: title of the method that gains are relative to.
        order: methods by the headline metric, best first.
        tied: methods that are not clearly below the best.
    """

    report: PageData
    reference: str
    order: Sequence[str]
    tied: Sequence[str]

    @property
    def first(self) -> str:
        """The method that the page starts with: the best that is not training alone."""
        others = [t for t in self.order if t not in (self.reference, references.LOCAL, references.FULL)]
        return next(iter([*others, *self.order, *self.report.runs]))

    def standing(self, title: str, reference: str | None = None) -> Standing | None:
        """Return a method against a reference; None if they were not compared."""
        return self.report.standings.get(reference or self.reference, {}).get(title)

    def final(self, title: str, metric: str = "accuracy") -> Spread | None:
        """Return a final figure of a method over its seeds."""
        return spread([run.final.get(metric) for run in self.report.runs[title]])

    def megabytes(self, title: str) -> float | None:
        """Return the megabytes sent by a method, the mean over its seeds."""
        found = spread([None if run.bytes is None else run.bytes / 1e6 for run in self.report.runs[title]])
        return None if found is None else found.mean

    @property
    def seeds(self) -> int:
        """Number of seeds of the page."""
        return max(map(len, self.report.runs.values()))


def block(scene: Scene, title: str) -> str:
    """Return the eyebrow, the headline, the sentence below it and the four figures of a method, as HTML."""
    first, second = sentences(scene, title)
    said = "".join(_span(*part) for part in first)
    said += f' <span class="s2">{html.escape(second)}</span>' if second else ""
    hidden = "" if title == scene.first else " hidden"
    return (
        f'<div class="by-method" data-method="{html.escape(title)}"{hidden}>\n'
        f'<p class="eyebrow">{html.escape(_eyebrow(scene, title))}</p><h1>{said}</h1>\n'
        f'<p class="lede">{html.escape(tight(_lede(scene, title)))}</p>\n'
        f'<div class="panel kpis">{"".join(_figures(scene, title))}</div></div>\n'
    )


def _span(text: str, kind: str) -> str:
    return f'<span class="{kind}">{html.escape(text)}</span>' if kind else html.escape(text)


def sentences(scene: Scene, title: str) -> tuple[Text, str]:
    """Return the headline of a method: for whom it paid, in parts, and how much."""
    metric = NAMED[scene.report.first.metric]
    accuracy, standing = scene.final(title, scene.report.first.metric), scene.standing(title)
    if accuracy is None:
        return [(f"{named(title)}: no round was evaluated.", "")], ""
    if marked := diverged(scene, title):
        every = len(scene.report.runs[title])
        seeds = f" in {len(marked)} of {every} seeds" if every > 1 else ""
        did = "".join(t for t, _ in _effect(scene, standing)) if standing else f"{_reached(scene, accuracy)}."
        return [(f"Training diverged with {title}", "l"), (f" from round {min(marked.values())} on{seeds}.", "")], (
            f"Its last usable models: {did}"
        )  # fmt: skip
    if scene.report.unlearned:
        return [(scene.report.unlearned[0], "")], scene.report.unlearned[1]
    if title == scene.reference and alone(title):
        return [(f"Trained alone, the {_clients(scene, title)} reach {_reached(scene, accuracy)} on average.", "")], ""
    if standing is None:
        return _unmatched(scene, title, accuracy), ""
    if standing.difference.identical:
        if not standing.finding.collapsed:
            return [(f"{title} has the same {metric} as {against(scene.reference)} at every client.", "")], ""
        nothing = "It learned nothing from the others." if alone(scene.reference) else ""
        return [(f"{title} predicts exactly as {against(scene.reference)} does at every client.", "")], nothing
    top = scene.order[0]
    above = any(other.difference.mean > 0 for t in scene.order if (other := scene.standing(t, top)))
    if title == scene.first and top != title and (alone(top) or top == scene.reference) and not above:
        none = f"No method is above {against(top)} on average."
        return [(none, "")], f"The highest, {title}: " + "".join(text for text, _ in _effect(scene, standing))
    return [(f"{title}: ", ""), *_effect(scene, standing)], _likely(standing)


def diverged(scene: Scene, title: str) -> Mapping[int, int]:
    """Return the round from which on training of a method diverged, by seed; empty if it did not."""
    return headline({title: scene.report.runs[title]}).diverged.get(title, {})


def _unmatched(scene: Scene, title: str, accuracy: Spread) -> Text:
    best = title == scene.order[0] and len(scene.order) > 1
    rank = f", the highest of {len(scene.order)} methods" if best else ""
    worst = scene.final(title, "worst_decile")
    tail = (
        ""
        if worst is None or rank or not scene.report.first.fair
        else f", {share(worst.mean)} for the worst tenth of them"
    )
    where = "" if rank else f" over {_clients(scene, title)}"
    return [(f"{named(title)} reached {_reached(scene, accuracy)} on average{where}{rank}{tail}.", "")]


def _clients(scene: Scene, title: str) -> str:
    count = max(len(run.by_client) for run in scene.report.runs[title])
    return f"{count} client{'' if count == 1 else 's'}"


def _reached(scene: Scene, found: Spread) -> str:
    return f"{share(found.mean)} {NAMED[scene.report.first.metric]}"


def _effect(scene: Scene, standing: Standing) -> Text:
    """Return "7 points above training alone in this one run.", or the words for several seeds."""
    mean, word, other = standing.difference.mean, standing.difference.word, against(standing.reference)
    size = points(mean) + ("" if scene.report.first.fair else f" of {NAMED[scene.report.first.metric]}")
    colour = "g" if mean > 0 else "l"
    side = "above" if mean > 0 else "below"
    if word in ("better", "worse"):
        return [(f"{word} than {other} by {size}", colour), (".", "")]
    if word in ("ahead", "behind"):
        return [(f"{size} {side} {other}", colour), (" in this one run.", "")]
    if word == "level":
        return [(f"level with {other} in this one run, at {signed(mean)} points.", "")]
    if word == "too few":
        return [(f"{size} {side} {other}; that is too few clients and seeds for more.", "")]
    return [(f"no clear difference from {other}, at {signed(mean)} points.", "")]


def _likely(standing: Standing) -> str:
    """Return the interval in words, in whole points unless an end would be zero or both would be the same."""
    found = standing.difference
    if found.low is None or found.high is None:
        return ""
    whole = min(abs(found.low), abs(found.high)) >= 0.005 and found.high - found.low >= 0.01
    over = "for clients like these" if found.seeds == 1 else f"over {found.seeds} seeds"
    return f"Likely {signed(found.low, 1 - whole)} to {signed(found.high, 1 - whole)} {over}."


def _eyebrow(scene: Scene, title: str) -> str:
    count = len(scene.order)
    if count == 1:
        return f"One run, compared with {against(scene.reference)}" if scene.standing(title) else "One run"
    if title == scene.reference:
        return "The reference: every client alone" if alone(title) else "The reference"
    if title not in scene.order:
        return "Not evaluated"
    metric = scene.report.first.metric
    means = {t: found.mean for t in scene.order if (found := scene.final(t, metric)) is not None}
    rank = 1 + sum(mean > means[title] for mean in means.values())  # equal means share one, as in tables
    if title == scene.order[0]:
        tied = len(scene.tied)
        below = f"; {tied} {'is' if tied == 1 else 'are'} not clearly below it" if tied else ""
        return f"Highest mean {NAMED[metric]} of {count} methods{below}"
    shared = ", shared" if sum(mean == means[title] for mean in means.values()) > 1 else ""
    return f"Rank {rank} of {count}{shared} by mean {NAMED[metric]}"


def _lede(scene: Scene, title: str) -> str:
    report, standing = scene.report, scene.standing(title)
    said = [] if report.first.fair else [f"{report.first.sentence} " if report.first.sentence else ""]
    runs = report.runs[title]
    if runs[0].at_best:
        said.append("All figures are of the round that is best on validation data. ")
    if early := ended_early(runs):
        said.append(f"Training ended early, after {ending(early)}, when validation accuracy no longer rose. ")
    if standing is None:
        if title == scene.reference and len(scene.order) > 1:
            said.append("Pick a method to see for whom it is higher and for whom lower.")
        elif title != scene.reference:
            said.append(_missing(scene, title, runs))
        return "".join(said).strip()
    said += [_these(standing), _measured(scene, standing), _among(scene, title), _chosen(scene, title)]
    if scene.seeds == 1:
        said.append("One seed: run two more before choosing.")
    return " ".join(filter(None, (text.strip() for text in said)))


def _these(standing: Standing) -> str:
    """Return the interval for the very clients of the runs, where several seeds have the same; "" otherwise."""
    found = standing.finding.these
    if found is None or found.low is None or found.high is None:
        return ""
    return f"For these {standing.clients} clients themselves: {signed(found.low)} to {signed(found.high)}."


def _measured(scene: Scene, standing: Standing) -> str:
    """Return the numbers of clients that were measured higher, equal and lower, and how many are truly worse off."""
    up, level, down = (ranged(standing.counts(kind), "none") for kind in (1, 0, -1))
    seeds = f" in each of {len(standing.seeds)} seeds" if len(standing.seeds) > 1 else ""
    text = f"Measured higher for {up} of {standing.clients} clients, equal for {level}, lower for {down}{seeds}"
    tested = sorted(one.n_test for one in standing.gains if one.n_test)
    clear = {one.client for one in standing.gains if one.clear}
    if tested and not clear and any(one.kind for one in standing.gains):
        sizes = f"{tested[0]} to {tested[-1]}" if tested[0] < tested[-1] else f"{tested[0]}"
        text += f"; tests of {sizes} samples cannot tell single clients apart"
    harmed = standing.finding.harmed
    if harmed is not None:
        of = "" if standing.finding.of == "clients" else f" of {harmed.of} {standing.finding.of}"
        by = "" if scene.report.first.fair else " by accuracy"
        ends = f"between {harmed.low} and {harmed.high}" if harmed.low < harmed.high else str(harmed.low)
        text += f": {ends}{of} {'is' if harmed.low == harmed.high == 1 else 'are'} truly worse off{by}"
    return f"{text}."


def _missing(scene: Scene, title: str, runs: Sequence[Run]) -> str:
    rounds = f"Figures are means over {rounds_of(runs)}. " if rounds_of(runs).startswith("rounds") else ""
    if any(scene.report.standings.get(scene.reference, {})) or scene.reference in scene.report.runs:
        return f"{rounds}There is no seed or client in common with {scene.reference} to compare with."
    return f"{rounds}There is no {scene.reference} run to compare with, so gains are not known."


def _among(scene: Scene, title: str) -> str:
    """Return the place among all methods, and the simplest federation next to it; "" where there is neither."""
    count = len(scene.order)
    place = f"Highest average of {count} methods" if count > 1 and title == scene.order[0] else ""
    standing, fedavg = scene.standing(title, FEDAVG), scene.standing(FEDAVG)
    if standing is None or scene.reference == FEDAVG:
        return f"{place}." if place else ""
    word, by = standing.difference.word, points(standing.difference.mean)
    name = FEDAVG if fedavg is None else f"{FEDAVG} ({signed(fedavg.difference.mean)})"
    once = " in this one run" if standing.difference.seeds == 1 else ""
    said = {
        "better": f"{name} is worse by {by}", "worse": f"{name} is better by {by}",
        "ahead": f"{name} is {by} below it{once}", "behind": f"{name} is {by} above it{once}",
    }.get(word, f"{name} is not distinguishable from it")  # fmt: skip
    mine, other = scene.megabytes(title), scene.megabytes(FEDAVG)
    less = other / mine if mine and other else 1.0
    said += f" and needs {100 * less:.0f}% of the traffic" if less < 0.9 else ""
    return f"{place}; {said}." if place else f"{said}."


def _chosen(scene: Scene, title: str) -> str:
    """Return whether the verdict on the method that the page chose holds for all comparisons together."""
    standing = scene.standing(title)
    if title != scene.first or standing is None or standing.finding.p is None or standing.finding.comparisons == 1:
        return ""
    if standing.difference.word not in ("better", "worse", "ahead", "behind"):
        return ""
    holds = "clear" if standing.finding.p < 0.05 else "not clear"
    return f"Chosen from {standing.finding.comparisons} comparisons, its difference is {holds} (Holm's correction)."


def _figures(scene: Scene, title: str) -> list[str]:
    standing = scene.standing(title)
    low = _low(scene)
    return [
        _accuracy(scene, title, standing, low),
        _counts(scene, title, standing),
        _worst(scene, title, standing, low),
        _traffic(scene, title),
    ]


def _card(title: str, big: str, picture: str, caption: str) -> str:
    long = " long" if big.count("–") > 1 else ""
    return (
        f'<div class="kpi"><h2>{html.escape(title)}</h2><div class="big{long}">{big}</div>{picture}'
        f'<div class="cap">{html.escape(caption)}</div></div>'
    )


def _low(scene: Scene) -> float:
    """Return the lower end of the scale of accuracies, and of the page's first figure, in the pictures."""
    lows = [min(run.by_client.values(), default=1.0) for runs in scene.report.runs.values() for run in runs]
    lows += [found.mean for t in scene.report.runs if (found := scene.final(t, scene.report.first.metric)) is not None]
    return min(0.9, int(10 * max(0.0, min(lows, default=0.0) - 0.05)) / 10)


def _accuracy(scene: Scene, title: str, standing: Standing | None, low: float) -> str:
    metric = scene.report.first.metric
    found = scene.final(title, metric)
    if found is None:
        return _card(f"Mean {NAMED[metric]}", "–", '<div class="mini"></div>', "no round was evaluated")
    small = "" if found.std is None else f"<small>± {100 * found.std:.1f}</small>"
    before, caption = None, "the reference" if title == scene.reference else "mean over clients"
    if standing is not None:
        before = standing.before
        name = "alone" if alone(scene.reference) else scene.reference
        caption = f"{name} {share(before)} · {signed(standing.difference.mean)} points{_in_common(scene, standing)}"
    says = f"{share(found.mean)}" if before is None else f"from {share(before)} to {share(found.mean)}"
    return _card(
        f"Mean {NAMED[metric]}", share(found.mean) + small, pictures.dumbbell(before, found.mean, low, says), caption
    )


def _in_common(scene: Scene, standing: Standing) -> str:
    """Return the words for a comparison that lacks some of the method's seeds; "" if it has all."""
    common, all_seeds = len(standing.seeds), sum(bool(run.by_client) for run in scene.report.runs[standing.title])
    return "" if common == all_seeds else f" in {common} seed{'' if common == 1 else 's'} in common"


def _counts(scene: Scene, title: str, standing: Standing | None) -> str:
    if standing is None:
        caption = "the reference" if title == scene.reference else "nothing to compare with"
        return _card("Clients", _clients(scene, title).split()[0], '<div class="mini"></div>', caption)
    three = [standing.counts(kind) for kind in (1, 0, -1)]
    up, level, down = (ranged(counts).replace(" to ", "–") for counts in three)
    says = f"{up} {WORDS[1]}, {level} {WORDS[0]}, {down} {WORDS[-1]}"
    clear = len({one.client if standing.finding.of == "clients" else (one.seed, one.client)
                 for one in standing.gains if one.clear})  # fmt: skip
    caption = f"clear by themselves: {clear}; truly worse off: {harmed_range(standing)}"
    big = "<i>/</i>".join(html.escape(text) for text in (up, level, down))
    marks = pictures.clients(((one.kind, one.clear) for one in standing.gains), says)
    return _card("Clients higher / equal / lower", big, marks, caption).replace("<h2>Clients ", _CLIENTS, 1)


def harmed_range(standing: Standing) -> str:
    """Return the range for the number of harmed clients: 0–4, of 60 results where seeds have different clients."""
    found = standing.finding.harmed
    if found is None:
        return "–"
    of = "" if standing.finding.of == "clients" else f" of {found.of}"
    return f"{found.low}{f'–{found.high}' if found.high > found.low else ''}{of}"


def lowest(scene: Scene, title: str, reference: bool = False) -> tuple[float, str] | None:
    """Return the headline metric of the worst client in the last round, the mean over seeds, and the client's name in
    the only seed; of the method, or of its reference where the two were compared."""
    standing = scene.standing(title) if reference else None
    if reference and standing is None:
        return None
    seeds: list[Mapping[int, float]] = (
        [{one.client: one.value - one.gain for one in seed} for seed in standing.seeds] if standing
        else [found for run in scene.report.runs[title] if (found := run.single(scene.report.first.metric))]
    )  # fmt: skip
    if not seeds:
        return None
    value = sum(min(seed.values()) for seed in seeds) / len(seeds)
    client = min(seeds[0], key=lambda c: (seeds[0][c], c))
    names = scene.report.names
    name = names[client] if client < len(names) else f"client {client}"
    return value, "" if len(seeds) > 1 else name


def _worst(scene: Scene, title: str, standing: Standing | None, low: float) -> str:
    found, before = lowest(scene, title), lowest(scene, title, reference=True)
    if found is None:
        return _card("Worst client", "–", '<div class="mini"></div>', "no client was tested")
    value, name = found
    caption = name or "mean of the worst client of each seed"
    if before is not None and alone(scene.reference):
        who = f" ({before[1]})" if before[1] else ""
        common = _in_common(scene, standing) if standing else ""
        caption = f"{caption} · alone, worst {share(before[0])}{who}{common}"
    level = None if before is None else before[0]
    picture = pictures.dumbbell(level, value, low, f"{share(value)}")
    return _card("Worst client", share(value), picture, caption)


def _traffic(scene: Scene, title: str) -> str:
    mine = scene.megabytes(title)
    if mine is None:
        return _card("Traffic", "–", '<div class="mini"></div>', "nothing was counted")
    top = max(scene.megabytes(t) or 0.0 for t in scene.report.runs)
    other = scene.megabytes(FEDAVG) if FEDAVG in scene.report.runs else None
    caption = "sent up and down"
    if title == FEDAVG:
        caption = "the simplest method"
    elif mine < 0.001 * top or mine == 0:
        caption = "next to nothing to send"
    elif other:
        caption = _factor(mine / other) + f" FedAvg ({short_mb(other)} MB)"
    picture = pictures.bar(mine, top, other, f"{short_mb(mine)} MB")
    return _card("Traffic", f"{short_mb(mine)}<small>MB</small>".replace("<1<", "&lt;1<"), picture, caption)


_CLIENTS = '<h2><span class="hp">Clients </span>'
"""The beginning of the second figure's heading, which a phone has no room for."""


def _factor(value: float) -> str:
    """Return a traffic relative to another: as, 2.4 ×, 42% of."""
    if abs(value - 1) < 0.03:
        return "as"
    return f"{value:.1f} ×" if value > 1 else f"{100 * value:.0f}% of" if value >= 0.01 else "less than 1% of"
