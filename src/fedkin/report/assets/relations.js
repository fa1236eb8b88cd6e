// Who learned from whom in one run, and what each client has: the data of maps are unpacked here.
const className = (c) => (data.classes && data.classes[c]) || String(c);
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** The cells of the map in one frame, 0 being the mean of all. */
const weightCells = (frames, n) => {
  frames.raw ||= bytes(frames.cells);
  frames.rawMean ||= bytes(frames.mean);
  const { side, labels, low, high } = frames, values = [];
  const from = n ? frames.raw.subarray((n - 1) * side * side, n * side * side) : frames.rawMean;
  for (let i = 0; i < side; i++) for (let j = 0; j < side; j++) {
    const v = from[i * side + j];
    if (v !== 255) values.push({ client: labels[i], from: labels[j], weight: +(low + ((high - low) * v) / 254).toPrecision(3) });
  }
  return values;
};
const memberCells = ({ rounds, clusters, cells }) => {
  const raw = new Uint16Array(bytes(cells).buffer), values = [];
  raw.forEach((v, at) => {
    const client = nameOf(Math.floor(at / rounds.length));
    if (v !== 65535) values.push({ round: rounds[at % rounds.length], client, cluster: clusters[v] });
  });
  return values;
};
const labelCells = (one) => {
  const { x, y } = one.spec.encoding, values = [];
  data.shared[part.counts].forEach((row, i) => row.forEach((samples, c) => {
    if (samples) values.push({ client: y.scale.domain[i], class: x.scale.domain[c], samples });
  }));
  return values;
};

let playing = null;
const weights = (one) => {
  const frames = part.frames;
  const slider = element("input", { type: "range", min: 0, max: frames.rounds.length, value: 0, id: "round" });
  const says = element("output", { id: "round-says" });
  const play = element("button", { className: "act", type: "button", id: "play", textContent: "Play" });
  const text = () => {
    const n = +slider.value;
    if (!n) return "all rounds (mean)";
    const [a, b] = frames.rounds[n - 1];
    return a === b ? `round ${a}` : `rounds ${a} to ${b} (mean)`;
  };
  let view = null;
  const turn = () => {
    says.textContent = text();
    slider.setAttribute("aria-valuetext", text());
    if (view) view.data("cells", weightCells(frames, +slider.value)).runAsync();
  };
  const stop = () => {
    clearInterval(playing);
    playing = null;
    play.textContent = "Play";
  };
  slider.setAttribute("aria-label", "Round of the map");
  slider.addEventListener("input", () => { stop(); turn(); });
  play.addEventListener("click", () => {
    if (playing) return stop();
    play.textContent = "Stop";
    const pace = Math.max(120, Math.min(700, 20000 / frames.rounds.length));
    playing = setInterval(() => {
      slider.value = +slider.value >= frames.rounds.length ? 0 : +slider.value + 1;
      turn();
      if (+slider.value === frames.rounds.length) stop();
    }, still.matches ? 1500 : pace); // who asked for less motion gets single pictures, not a film
  });
  turn();
  // a map of few clients is no larger than it needs to be
  const height = Math.min(460, Math.max(200, 70 * frames.side));
  return figure({ ...one, spec: { ...one.spec, height } }, {
    square: true, controls: [element("div", { className: "controls" }, play, slider, says)],
    cells: () => weightCells(frames, +slider.value), ready: (now) => { view = now; },
  });
};

const makers = {
  weights,
  clusters: (one) => figure(one, { cells: () => memberCells(part.clusters) }),
  labels: (one) => figure(one, { cells: () => labelCells(one), widest: 240 + 90 * one.spec.encoding.x.scale.domain.length }),
};

/** The figures of the run that is shown, in place of those of another. */
const showRelations = () => {
  clearInterval(playing);
  playing = null;
  const places = { relations: byId("figures-relations"), labels: byId("figures-labels") };
  for (const place of Object.values(places)) {
    forget(place);
    place.replaceChildren();
  }
  for (const one of part.figures) {
    places[one.id === "labels" ? "labels" : "relations"].append((makers[one.id] || figure)(one));
  }
  const clustered = data.parts.some((p) => p.title === part.title && p.figures.some((f) => f.id.startsWith("cluster")));
  const none = {
    relations: part.seed === null && clustered
      ? "Clusters have no mean over seeds: their numbers mean another thing in each. Choose a seed."
      : `${part.title} says neither weights nor clusters: all its clients share one model, or none do.`,
    labels: "This run folder does not say the samples by class: the run has privacy settings, or an older version wrote it.",
  };
  for (const [name, place] of Object.entries(places)) {
    if (!place.children.length) place.append(element("p", { className: "note", textContent: none[name] }));
  }
};
