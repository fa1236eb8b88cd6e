// One client: a drawer with its figures under every method, over rounds, its group, its data.
const drawer = byId("drawer");
let current = null;

const sentenceOn = (one) => {
  const over = byId("other").value, alone = over === data.alone ? "alone" : `with ${over}`;
  if (missing(one.acc)) return "This client was not tested.";
  if (missing(one.gain) || part.title === over) return `${fixed(one.acc)}% with ${called(part.title)}.`;
  if (!one.kind) return `${part.title} and ${over === data.alone ? "training alone" : over} reach the same: ${fixed(one.acc)}%.`;
  const answers = (Math.abs(one.gain) * one.test) / 100;
  const size = answers < 1.5 ? "about one answer" : `about ${answers.toFixed(0)} answers`;
  const how = missing(one.p) ? "" : one.strong ? "; clear by itself" : `; chance alone could explain it (p = ${one.p.toFixed(2)})`;
  return `${one.kind > 0 ? "Gained" : "Lost"} ${Math.abs(one.gain).toFixed(1)} points with ${part.title}: ${fixed(one.acc)}%, ` +
    `against ${fixed(one.before)}% ${alone}. With ${one.test} test samples that is ${size}${how}.`;
};

/** The client under every method of the page, in the same seed. */
const underEach = (one) => {
  const rows = [];
  for (const title of data.order) {
    const found = data.parts.find((p) => p.title === title && p.seed === part.seed);
    const at = found ? found.columns.client.indexOf(one.id) : -1;
    const accuracy = at < 0 ? null : found.columns["accuracy %"][at];
    if (!missing(accuracy)) rows.push({ method: called(title), title, accuracy, from: one.before, kind: missing(one.before) || accuracy >= one.before ? "gain" : "loss" });
  }
  if (rows.length < 2) return null;
  const names = rows.map((row) => row.method), styles = rows.map((row) => data.methods[row.title]);
  const scale = (values) => ({ field: "method", type: "nominal", legend: null, scale: { domain: names, range: values } });
  const y = { field: "method", type: "nominal", title: null, sort: null, scale: { domain: names }, axis: { labelLimit: 108, grid: true, labelColor: "var(--ink)" } };
  const low = Math.max(0, 10 * Math.floor((Math.min(...rows.map((row) => row.accuracy)) - 5) / 10));
  const x = { field: "accuracy", type: "quantitative", title: null, scale: { domain: [low, 100], nice: false }, axis: { grid: false, tickCount: 3, labelExpr: "datum.value + '%'" } };
  const marks = [
    { mark: { type: "rule", strokeWidth: 2 }, encoding: { y, x, x2: { field: "from" }, color: { field: "kind", legend: null, scale: { domain: ["gain", "loss"], range: ["var(--gain)", "var(--loss)"] } } } },
    { mark: { type: "point", size: 64, opacity: 1, strokeWidth: 1.6 }, encoding: { y, x, shape: scale(styles.map((s) => s.shape)), stroke: scale(styles.map((s) => s.colour)),
      fill: scale(styles.map((s) => (s.filled ? s.colour : "var(--surface)"))) } },
    { mark: { type: "text", align: "left", dx: 12, x: { expr: "width" } }, encoding: { y, text: { field: "text" } } },
  ];
  for (const row of rows) row.text = `${row.accuracy.toFixed(1)}%`;
  if (!missing(one.before)) marks.unshift({ data: { values: [{ accuracy: one.before }] }, mark: { type: "rule", color: "var(--same)", strokeDash: [4, 3] }, encoding: { x } });
  return small("With every method", { height: { step: 26 }, padding: { left: 0, top: 4, right: 2, bottom: 0 }, data: { values: rows }, layer: marks });
};

/** Its accuracy over rounds and the compared method's; of several seeds the mean, from lowest to highest. */
const overRounds = (one) => {
  const points = [], titles = [];
  for (const found of [part, beside]) {
    const at = found ? found.columns.client.indexOf(one.id) : -1;
    if (at < 0) continue;
    titles.push(found.title);
    const value = (values, t) => (values && values[at][t] !== null ? values[at][t] / 10 : null);
    found.rounds.forEach((round, t) => {
      const row = { round, accuracy: value(found.series, t), series: found.title };
      if (found.low) Object.assign(row, { low: value(found.low, t), high: value(found.high, t) });
      if (row.accuracy !== null) points.push(row);
    });
  }
  const y = (field) => ({ field, type: "quantitative", title: null, scale: { domain: [0, 100] }, axis: { tickCount: 3, labelExpr: "datum.value + '%'" } });
  const styles = titles.map((t) => data.methods[t]);
  const scale = (values) => ({ field: "series", type: "nominal", legend: null, scale: { domain: titles, range: values } });
  const share = (part.columns["majority %"] || [])[one.i];
  const constant = missing(share) ? [] : [{
    data: { values: [{ "always its most frequent class": share }] },
    mark: { type: "rule", strokeDash: [2, 2], color: "var(--ink-3)", tooltip: { content: "data" } },
    encoding: { y: { field: "always its most frequent class", type: "quantitative" } },
  }];
  const band = part.low ? [{ mark: { type: "area", opacity: 0.18 }, encoding: { y: y("low"), y2: { field: "high" } } }] : [];
  const thin = part.rounds.length < part.allRounds ? ` (${part.rounds.length} of ${part.allRounds} rounds)` : "";
  const grey = titles.length > 1 ? `, and ${titles[1] === data.alone ? "alone (dashed)" : titles[1]}` : "";
  return small(`Over rounds: ${part.title}${grey}${part.low ? ", mean and range of seeds" : ""}${thin}${constant.length ? "; dotted: always its most frequent class" : ""}`, {
    data: { values: points },
    encoding: {
      x: { field: "round", type: "quantitative", title: null, axis: { tickMinStep: 1, grid: false, tickCount: 4, labelExpr: "datum.value % 1 ? '' : datum.label" }, scale: { zero: false, nice: false } },
      color: scale(styles.map((s) => s.colour)),
    },
    layer: [...constant, ...band, { mark: { type: "line", tooltip: true, point: points.length < 6 },
      encoding: { y: y("accuracy"), strokeDash: scale(styles.map((s) => s.dash)) } }],
  });
};
const classesOf = (counts) => small("Training samples by class", {
  data: { values: counts.map((samples, c) => ({ class: className(c), samples })) },
  encoding: { x: { field: "class", type: "nominal", sort: null, title: null, axis: { labelAngle: counts.length > 4 && className(0).length > 3 ? -45 : 0, labelOverlap: true, labelLimit: 90 } },
    y: { field: "samples", type: "quantitative", axis: null } },
  layer: [{ mark: { type: "bar", color: "var(--ink-2)", cornerRadius: 2, tooltip: true } },
    ...(counts.length <= 20 ? [{ transform: [{ filter: "datum.samples > 0" }], mark: { type: "text", dy: -8 }, encoding: { text: { field: "samples" } } }] : [])],
});
const teachersOf = (from) => small("Learned most from (mean weight)", {
  height: { step: 18 },
  data: { values: from.map(([j, weight]) => ({ client: nameOf(j), weight })) },
  mark: { type: "bar", tooltip: true, color: "var(--gain)" },
  encoding: { y: { field: "client", type: "nominal", sort: null, title: null, axis: { labelLimit: 110 } },
    x: { field: "weight", type: "quantitative", title: null, axis: { tickCount: 4 } } },
});
const groupThroughRounds = (one) => {
  if (one.group < 0 || !part.clusters || part.columns.group) return null;
  const mates = part.columns.client.filter((id, n) => id !== one.id && groupOf(n) === one.group).map((id) => nameOf(id));
  const members = membersOf(part), width = 400, w = width / part.clusters.rounds.length;
  const strip = picture(width, 24, "Its group in each round", part.clusters.rounds.map((_, t) => {
    const letter = members(one.id, t);
    return drawn("rect", { x: t * w, y: 0, width: w + 0.3, height: 24, fill: letter < 0 ? "var(--same-soft)" : groupColour(letter) });
  }));
  strip.setAttribute("width", "100%");
  strip.setAttribute("preserveAspectRatio", "none");
  const text = mates.length ? mates.slice(0, 40).join(", ") + (mates.length > 40 ? " …" : "") : "";
  return element("div", {}, element("h3", { textContent: `Usually in group ${groupName(one.group)}${mates.length ? ", with" : ", alone"}` }),
    element("p", { className: "t14", textContent: text }), strip,
    element("p", { className: "t12 mut", textContent: `Its group from round ${part.clusters.rounds[0]} to ${part.clusters.rounds.at(-1)}; pale: none` }));
};
const factsOf = (one) => {
  const value = (name) => (part.columns[name] || [])[one.i];
  const rows = [["Training / test samples", `${fixed(one.samples, 0)} / ${missing(one.test) ? "–" : one.test}`],
    ["Rounds taken part", String(one.took)], ["95% interval of its accuracy", missing(one.half) ? null : `±${one.half.toFixed(0)} points`],
    ["Always its most frequent class", missing(value("majority %")) ? null : `${fixed(value("majority %"))}%`],
    ["Lowest to highest of the seeds", missing(value("lowest %")) ? null : `${fixed(value("lowest %"))} to ${fixed(value("highest %"))}%`],
    ["Rounds refused", missing(value("refused")) ? null : String(value("refused"))]];
  return element("dl", { className: "kv" }, rows.filter(([, text]) => text !== null).flatMap(([name, text]) =>
    [element("dt", { textContent: name }), element("dd", { textContent: text })]));
};

const openClient = (id) => {
  const one = people().find((found) => found.id === id), body = byId("drawer-body");
  if (!one) return;
  current = id;
  forget(body);
  byId("drawer-title").textContent = part.columns.name ? one.name : `Client ${id}`;
  const from = part.partners && part.partners[one.i];
  if (!drawer.open) drawer.showModal();
  body.replaceChildren(element("p", { textContent: sentenceOn(one) }), ...[underEach(one), overRounds(one), groupThroughRounds(one),
    from && from.length ? teachersOf(from) : null, one.mix ? classesOf(one.mix) : null, factsOf(one)].filter(Boolean));
  drawer.scrollTop = 0;
};
const step = (by) => {
  const ids = ordered().map((one) => one.id), at = ids.indexOf(current);
  openClient(ids[(at + by + ids.length) % ids.length]);
};
byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("close").addEventListener("click", () => drawer.close());
drawer.addEventListener("click", (event) => event.target === drawer && drawer.close());
drawer.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
drawer.addEventListener("close", () => forget(byId("drawer-body")));
