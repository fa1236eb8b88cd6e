"use strict";
// Draws the charts of a report when they come into view, and answers to its controls. All data stand in the page.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const element = (tag, props = {}, ...inner) => {
    const made = Object.assign(document.createElement(tag), props);
    made.append(...inner);
    return made;
  };
  const byId = (id) => document.getElementById(id);
  const charts = new Set(); // what is drawn, to be drawn again in other colours

  // ---- light and dark
  const wishes = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme || (wishes.matches ? "dark" : "light")) === "dark";
  const again = () => {
    byId("theme").textContent = dark() ? "Light" : "Dark";
    for (const chart of charts) if (chart.drawn) chart.draw();
  };
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    again();
  });
  wishes.addEventListener("change", again);

  // ---- files
  const save = (name, kind, text) => {
    const address = URL.createObjectURL(new Blob([text], { type: kind }));
    element("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const csv = (rows) =>
    rows.map((row) => row.map((v) => {
      const text = v === null || v === undefined ? "" : String(v);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    }).join(",")).join("\r\n") + "\r\n";

  // ---- charts
  const watcher = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting) { watcher.unobserve(one.target); one.target.chart.draw(); }
  }, { rootMargin: "300px" });

  /** The same chart without legends: the page has check boxes in their place, which a keyboard reaches. */
  const unlegended = (spec) => {
    const encoding = { ...spec.encoding };
    for (const channel of ["color", "strokeDash"]) {
      if (encoding[channel]) encoding[channel] = { ...encoding[channel], legend: null };
    }
    return { ...spec, encoding, ...(spec.layer ? { layer: spec.layer.map(unlegended) } : {}) };
  };

  /** A chart that is drawn when it comes into view. `spec` may be a function of the chart's width. */
  class Chart {
    constructor(holder, spec, { legend = true, ready = null } = {}) {
      Object.assign(this, { holder, spec, legend, ready, drawn: false, view: null, hidden: [], measure: null });
      holder.chart = this;
      if (typeof spec.height === "number") holder.style.minHeight = `${spec.height + 40}px`; // nothing jumps later
      charts.add(this);
      watcher.observe(holder);
    }
    async draw() {
      this.drawn = true;
      const square = this.holder.dataset.square ? { height: Math.min(460, this.holder.clientWidth) } : {};
      const spec = { ...(this.legend ? this.spec : unlegended(this.spec)), ...square, width: "container" };
      const config = structuredClone(dark() ? data.config.dark : data.config.light);
      if (this.holder.clientWidth < 560) config.legend = { ...config.legend, orient: "bottom", columns: 3 };
      const made = await window.vegaEmbed(this.holder, spec, { actions: false, renderer: "canvas", config });
      this.view = made.view;
      if (this.hidden.length) this.view.signal("hidden", this.hidden);
      if (this.measure) this.view.signal("measure", this.measure);
      if (this.ready) this.ready(this.view);
      await this.view.runAsync();
    }
    signal(name, value) {
      this[name] = value;
      if (this.view) this.view.signal(name, value).runAsync();
    }
    forget() {
      charts.delete(this);
      watcher.unobserve(this.holder);
      if (this.view) this.view.finalize();
    }
  }

  /** The heading, the chart, its controls and its button, for an entry of the data. */
  const figure = (one, caption, options = {}) => {
    const holder = element("div", { className: "chart", id: `chart-${one.id}` });
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `${one.fact}. ${caption}`);
    if (options.square) holder.dataset.square = "yes";
    const chart = new Chart(holder, one.spec, { legend: !one.series, ready: options.ready });
    const button = element("button", { className: "act", type: "button", textContent: "SVG" });
    button.setAttribute("aria-label", `Save as SVG: ${one.fact}`);
    button.addEventListener("click", async () => {
      if (!chart.view) await chart.draw();
      save(`${one.id}.svg`, "image/svg+xml", await chart.view.toSVG());
    });
    const top = element("div", { className: "toggles" });
    if (one.series && Object.keys(one.series).length > 1) {
      for (const [name, colour] of Object.entries(one.series)) {
        const box = element("input", { type: "checkbox", checked: true });
        box.addEventListener("change", () => {
          chart.signal("hidden", box.checked ? chart.hidden.filter((n) => n !== name) : [...chart.hidden, name]);
        });
        const swatch = element("span", { className: "swatch" });
        swatch.style.background = colour;
        top.append(element("label", {}, box, swatch, name));
      }
    }
    if ((one.spec.params || []).some((p) => p.name === "measure")) {
      const pick = element("select");
      pick.setAttribute("aria-label", "Which accuracy");
      for (const name of ["mean over clients", "worst 10 % of clients"]) pick.append(element("option", { textContent: name }));
      pick.addEventListener("change", () => chart.signal("measure", pick.value));
      top.append(pick);
    }
    const made = element("figure", {}, element("h3", { textContent: one.fact }), top, ...(options.controls || []), holder,
      element("figcaption", { textContent: caption + " " }, button));
    made.chart = chart;
    return made;
  };

  for (const [section, list] of Object.entries(data.figures)) {
    const place = byId(`figures-${section}`);
    for (const one of list) place.append(figure(one, one.caption));
  }

  // ---- tables written by the page itself
  for (const button of document.querySelectorAll("button[data-csv]")) {
    button.addEventListener("click", () => {
      const table = byId(button.dataset.csv);
      save(`${button.dataset.csv}.csv`, "text/csv", csv([...table.rows].map((row) => [...row.cells].map((c) => c.textContent))));
    });
  }

  // ---- one method: its clients and who learned from whom
  let part = null, order = null, playing = null;
  const body = byId("people-rows");
  const show = (value) => (value === null || value === undefined ? "–" : String(value));
  const isText = (name) => name === "name";

  const rowsInOrder = () => {
    const wanted = byId("filter").value.trim().toLowerCase();
    const names = Object.keys(part.columns);
    const index = part.columns.client.map((_, i) => i).filter((i) =>
      !wanted || names.some((n) => {
        const text = show(part.columns[n][i]).toLowerCase();
        return n === "name" ? text.includes(wanted) : text === wanted || `${n} ${text}` === wanted;
      }));
    if (!order) return index;
    const column = part.columns[order.column], sign = order.down ? -1 : 1;
    const empty = (v) => v === null || v === undefined;
    return index.sort((a, b) => {
      const [x, y] = [column[a], column[b]];
      if (empty(x) || empty(y)) return empty(x) - empty(y); // what is not known stays last either way
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
    });
  };

  const fillTable = () => {
    const names = Object.keys(part.columns);
    body.replaceChildren(...rowsInOrder().map((i) => {
      const row = element("tr", { className: "client" });
      names.forEach((name, n) => {
        const cell = element("td", { className: isText(name) ? "" : "number" });
        const text = show(part.columns[name][i]);
        if (n === 0) {
          const button = element("button", { type: "button", textContent: text });
          button.setAttribute("aria-expanded", "false");
          button.setAttribute("aria-label", `Client ${text}: show more`);
          cell.append(button);
        } else cell.textContent = text;
        row.append(cell);
      });
      row.addEventListener("click", () => open(row, i));
      return row;
    }));
    byId("count").textContent = `${body.rows.length} of ${part.of} clients` +
      (part.columns.client.length < part.of ? `; the table holds the ${part.columns.client.length} worst and best` : "");
  };

  const small = (title, spec) => {
    const holder = element("div", { className: "chart" });
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", title);
    new Chart(holder, { height: 160, ...spec });
    return element("div", {}, element("h3", { textContent: title }), holder);
  };

  const open = (row, i) => {
    const button = row.querySelector("button"), next = row.nextElementSibling;
    if (next && next.classList.contains("detail")) {
      next.querySelectorAll(".chart").forEach((holder) => holder.chart.forget());
      next.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    button.setAttribute("aria-expanded", "true");
    const id = part.columns.client[i];
    const inner = element("div", { className: "small" });
    const points = [], beside = data.parts.filter((p) => p.title === data.reference && p !== part);
    for (const one of [part, ...beside]) {
      const at = one.columns.client.indexOf(id);
      if (at >= 0) one.series[at].forEach((v, t) => v !== null && points.push({ round: one.rounds[t], accuracy: v / 10, series: one.title }));
    }
    inner.append(small("Accuracy over rounds", {
      data: { values: points }, mark: { type: "line", tooltip: true, point: points.length < 3 },
      encoding: {
        x: { field: "round", type: "quantitative", axis: { tickMinStep: 1, grid: false } },
        y: { field: "accuracy", type: "quantitative", title: "test accuracy (%)", scale: { zero: false } },
        color: { field: "series", type: "nominal", title: null, scale: { domain: [part, ...beside].map((p) => p.title) }, legend: { orient: "bottom" } },
      },
    }));
    const counts = part.labels && part.labels[i];
    if (counts) {
      inner.append(small("Training samples by class", {
        data: { values: counts.map((n, c) => ({ class: c, samples: n })) }, mark: { type: "bar", tooltip: true },
        encoding: { x: { field: "class", type: "ordinal", axis: { labelAngle: 0, labelOverlap: true } }, y: { field: "samples", type: "quantitative" } },
      }));
    }
    const from = part.partners && part.partners[i];
    if (from && from.length) {
      inner.append(small("Learned most from (mean weight)", {
        data: { values: from.map(([j, w]) => ({ client: String(j), weight: w })) }, mark: { type: "bar", tooltip: true },
        encoding: { y: { field: "client", type: "nominal", sort: null }, x: { field: "weight", type: "quantitative" } },
      }));
    } else if (part.columns.cluster) {
      const mine = part.columns.cluster[i];
      const fellows = part.columns.client.filter((c, n) => c !== id && mine !== null && part.columns.cluster[n] === mine);
      inner.append(element("div", {}, element("h3", { textContent: "Learned with, in the last cluster" }),
        element("p", { textContent: fellows.length ? `Clients ${fellows.slice(0, 40).join(", ")}${fellows.length > 40 ? " …" : ""}` : "Nobody" })));
    }
    row.after(element("tr", { className: "detail" }, element("td", { colSpan: row.cells.length }, inner)));
  };

  const heads = () => {
    byId("people-head").replaceChildren(...Object.keys(part.columns).map((name) => {
      const button = element("button", { type: "button", textContent: name });
      const head = element("th", { className: isText(name) ? "" : "number", scope: "col" }, button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        order = { column: name, down: order && order.column === name ? !order.down : false };
        for (const other of byId("people-head").cells) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
        fillTable();
      });
      return head;
    }));
  };

  // ---- weights over rounds
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const cellsOf = (frames, n) => {
    const { side, labels, low, high } = frames, values = [];
    const from = n ? frames.raw.subarray((n - 1) * side * side, n * side * side) : frames.rawMean;
    for (let i = 0; i < side; i++) for (let j = 0; j < side; j++) {
      const v = from[i * side + j];
      if (v !== 255) values.push({ client: labels[i], from: labels[j], weight: +(low + ((high - low) * v) / 254).toPrecision(3) });
    }
    return values;
  };
  const weights = (one) => {
    const frames = part.frames;
    frames.raw ||= bytes(frames.cells);
    frames.rawMean ||= bytes(frames.mean);
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
      if (view) view.data("cells", cellsOf(frames, +slider.value)).runAsync();
    };
    slider.setAttribute("aria-label", "Round of the map");
    slider.addEventListener("input", turn);
    const stop = () => { clearInterval(playing); playing = null; play.textContent = "Play"; };
    play.addEventListener("click", () => {
      if (playing) return stop();
      play.textContent = "Stop";
      playing = setInterval(() => {
        slider.value = +slider.value >= frames.rounds.length ? 0 : +slider.value + 1;
        turn();
        if (+slider.value === frames.rounds.length) stop();
      }, Math.max(120, Math.min(700, 20000 / frames.rounds.length)));
    });
    const made = figure(one, one.caption, {
      square: true, controls: [element("div", { className: "controls" }, play, slider, says)],
      ready: (now) => { view = now; turn(); },
    });
    turn();
    return made;
  };

  const choose = (n) => {
    clearInterval(playing);
    playing = null;
    part = data.parts[n];
    order = null;
    for (const pick of document.querySelectorAll("select.method")) pick.value = String(n);
    for (const place of ["figures-relations", "figures-labels"]) {
      byId(place).querySelectorAll(".chart").forEach((holder) => holder.chart.forget());
      byId(place).replaceChildren();
    }
    for (const holder of body.querySelectorAll(".chart")) holder.chart.forget();
    for (const one of part.figures) {
      const place = byId(one.id === "labels" ? "figures-labels" : "figures-relations");
      place.append(one.id === "weights" ? weights(one) : figure(one, one.caption));
    }
    const none = (id, text) => byId(id).children.length || byId(id).append(element("p", { className: "note", textContent: text }));
    none("figures-relations", `${part.title} says neither weights nor clusters: all its clients share one model, or none do.`);
    none("figures-labels", "This run folder does not say the samples by class (it was written by an older version).");
    heads();
    fillTable();
  };
  for (const pick of document.querySelectorAll("select.method")) {
    data.parts.forEach((one, n) => pick.append(element("option", { value: String(n), textContent: data.seeds > 1 ? `${one.title}, seed ${one.seed}` : one.title })));
    pick.addEventListener("change", () => choose(+pick.value));
  }
  byId("filter").addEventListener("input", fillTable);
  byId("people-csv").addEventListener("click", () => {
    const names = Object.keys(part.columns);
    save(`clients-${part.title}.csv`, "text/csv", csv([names, ...rowsInOrder().map((i) => names.map((n) => part.columns[n][i]))]));
  });
  addEventListener("beforeprint", () => { for (const chart of charts) if (!chart.drawn) chart.draw(); });
  again();
  if (data.parts.length) choose(data.first);
  document.documentElement.dataset.ready = "yes";
})();
