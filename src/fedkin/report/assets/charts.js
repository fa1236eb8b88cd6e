// Charts are drawn when they come into view, or when the browser has nothing else to do.
const watcher = new IntersectionObserver((seen) => {
  for (const one of seen) if (one.isIntersecting) one.target.chart.first();
}, { rootMargin: "300px" });

/** The same chart without legends of series: the page has check boxes in their place, which a keyboard reaches. */
const unlegended = (spec) => {
  const encoding = { ...spec.encoding };
  for (const channel of ["color", "strokeDash"]) {
    if (encoding[channel] && encoding[channel].field === "series") encoding[channel] = { ...encoding[channel], legend: null };
  }
  return { ...spec, encoding, ...(spec.layer ? { layer: spec.layer.map(unlegended) } : {}) };
};

/** A chart in its holder; `says` is its text for who cannot see it, `cells` gives data that are not in `spec`. */
class Chart {
  constructor(holder, says, spec, { legend = true, ready = null, cells = null, paper = null } = {}) {
    Object.assign(this, { holder, says, spec, legend, ready, cells, paper, drawn: false, view: null, hidden: [], measure: null });
    holder.chart = this;
    if (typeof spec.height === "number") holder.style.minHeight = `${spec.height + 40}px`; // nothing jumps later
    this.name();
    charts.add(this);
    watcher.observe(holder);
  }
  name() {
    this.holder.setAttribute("role", "img");
    this.holder.setAttribute("aria-label", this.says);
    this.holder.removeAttribute("aria-roledescription");
  }
  first() {
    watcher.unobserve(this.holder);
    if (!this.drawn) this.draw();
  }
  async draw() {
    this.drawn = true;
    const width = this.holder.clientWidth;
    const narrow = width < 560;
    const steps = this.spec.height && this.spec.height.step;
    const spec = {
      ...(this.legend ? this.spec : unlegended(this.spec)),
      ...(this.holder.dataset.square ? { height: Math.min(this.spec.height, width) } : {}),
      ...(this.cells ? { data: { name: "cells", values: this.cells() } } : {}),
      ...(steps ? { autosize: { type: "fit-x", contains: "padding" } } : {}),
      width: "container",
    };
    const config = structuredClone(isDark() ? data.config.dark : data.config.light);
    if (this.paper) config.background = this.paper;
    if (narrow) {
      config.legend = { ...config.legend, orient: "bottom", columns: 3 };
      config.axis = { ...config.axis, labelLimit: 90 };
    }
    const made = await window.vegaEmbed(this.holder, spec, { actions: false, renderer: "canvas", config, logLevel: 1 });
    if (!charts.has(this)) return made.view.finalize(); // put away while it was drawn
    this.view = made.view;
    this.name(); // Vega has put its own there
    if (this.hidden.length) this.view.signal("hidden", this.hidden);
    if (this.measure) this.view.signal("measure", this.measure);
    if (this.ready) this.ready(this.view);
    await this.view.runAsync();
  }
  signal(name, value) {
    this[name] = value;
    if (this.view) this.view.signal(name, value).runAsync();
  }
  rows() {
    const layer = (this.spec.layer || []).find((l) => l.data);
    return this.cells ? this.cells() : (this.spec.data || layer.data).values;
  }
  forget() {
    charts.delete(this);
    watcher.unobserve(this.holder);
    if (this.view) this.view.finalize();
  }
}
const forget = (place) => place.querySelectorAll(".chart").forEach((holder) => holder.chart.forget());

// ---- which methods are shown: one choice for all charts of methods
const off = new Set();
const ofMethods = (series) => Object.keys(series).every((name) => name in data.methods);
const toggle = (name, shown) => {
  if (shown) off.delete(name);
  else off.add(name);
  for (const box of document.querySelectorAll("input.method-box")) if (box.value === name) box.checked = shown;
  for (const chart of charts) if (chart.methods) chart.signal("hidden", [...off]);
};
const boxes = (chart, series) => {
  const shared = ofMethods(series);
  chart.methods = shared;
  if (shared) chart.hidden = [...off];
  return Object.entries(series).map(([name, colour]) => {
    const box = element("input", { type: "checkbox", value: name, checked: !(shared && off.has(name)), className: shared ? "method-box" : "" });
    box.addEventListener("change", () => {
      if (shared) toggle(name, box.checked);
      else chart.signal("hidden", box.checked ? chart.hidden.filter((n) => n !== name) : [...chart.hidden, name]);
    });
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colour;
    return element("label", {}, box, swatch, name);
  });
};

const asCsv = (rows) => {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((n) => n !== "y");
  return csv([names, ...rows.map((row) => names.map((n) => row[n]))]);
};

/** The heading, the chart, its controls and its buttons, for an entry of the data. */
const figure = (one, options = {}) => {
  const holder = element("div", { className: "chart", id: `chart-${one.id}` });
  if (options.square) {
    holder.dataset.square = "yes";
    holder.style.maxWidth = `${one.spec.height + 160}px`;
  }
  if (options.widest) holder.style.maxWidth = `${options.widest}px`;
  const chart = new Chart(holder, `${one.fact}. ${one.caption}`, one.spec, { legend: !one.series, ready: options.ready, cells: options.cells });
  const top = element("div", { className: "toggles" });
  if (one.series && Object.keys(one.series).length > 1) {
    top.setAttribute("role", "group");
    top.setAttribute("aria-label", ofMethods(one.series) ? "Methods shown, in all charts" : "Lines shown");
    top.append(...boxes(chart, one.series));
  }
  if ((one.spec.params || []).some((p) => p.name === "measure")) {
    const pick = element("select");
    pick.setAttribute("aria-label", "Which accuracy");
    for (const name of new Set(one.spec.data.values.map((row) => row.measure))) pick.append(element("option", { textContent: name }));
    pick.addEventListener("change", () => chart.signal("measure", pick.value));
    top.append(pick);
  }
  const svg = button("SVG", `Save as SVG: ${one.fact}`, async () => {
    if (!chart.view) await chart.draw();
    save(`${one.id}.svg`, "image/svg+xml", await chart.view.toSVG());
  });
  const values = button("CSV", `Save as CSV: ${one.fact}`, () => save(`${one.id}.csv`, "text/csv", asCsv(chart.rows())));
  return element("figure", {}, element("h3", { textContent: one.fact }), top, ...(options.controls || []), holder,
    element("figcaption", { textContent: `${one.caption} ` }, svg, " ", values));
};

/** A small chart without buttons, for one client. */
const small = (title, spec) => {
  const holder = element("div", { className: "chart" });
  new Chart(holder, title, { height: 160, ...spec }, { paper: "transparent" });
  return element("div", {}, element("h3", { textContent: title }), holder);
};
