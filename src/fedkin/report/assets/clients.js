// The table of the clients of one run: sorted, filtered, opened.
let part = null, sorting = null; // the run that is shown; the column it is sorted by
const body = byId("people-rows");
const missing = (v) => v === null || v === undefined;
const isText = (name) => name === "name";
const nameOf = (i) => {
  const names = data.shared[part.names];
  return names ? names[i] : String(i);
};

/** A cell as it is shown: accuracies to a tenth, gains with their sign; files have two digits. */
const shown = (name, value) => {
  if (missing(value)) return "–";
  if (typeof value !== "number" || !/%|gain/.test(name)) return String(value);
  const text = Math.abs(value).toFixed(1);
  if (!name.startsWith("gain") || text === "0.0") return text;
  return (value < 0 ? "−" : "+") + text;
};

const rowsInOrder = () => {
  const wanted = byId("filter").value.trim().toLowerCase();
  const names = Object.keys(part.columns);
  const index = part.columns.client.map((_, i) => i).filter((i) =>
    !wanted || names.some((n) => {
      const text = String(part.columns[n][i] ?? "–").toLowerCase();
      return isText(n) ? text.includes(wanted) : text === wanted || `${n} ${text}` === wanted;
    }));
  if (!sorting) return index;
  const column = part.columns[sorting.column], sign = sorting.down ? -1 : 1;
  return index.sort((a, b) => {
    const [x, y] = [column[a], column[b]];
    if (missing(x) || missing(y)) return missing(x) - missing(y); // what is not known stays last either way
    return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
  });
};

const fillTable = () => {
  const names = Object.keys(part.columns);
  forget(body);
  body.replaceChildren(...rowsInOrder().map((i) => {
    const row = element("tr", { className: "client" });
    names.forEach((name, n) => {
      const text = shown(name, part.columns[name][i]);
      const cell = element("td", { className: isText(name) ? "" : "number" });
      if (n === 0) {
        const opener = element("button", { type: "button", textContent: text });
        opener.setAttribute("aria-expanded", "false");
        opener.setAttribute("aria-label", `Client ${text}: show more`);
        cell.append(opener);
      } else cell.textContent = text;
      row.append(cell);
    });
    row.addEventListener("click", () => open(row, i));
    return row;
  }));
  byId("count").textContent = `${body.rows.length} of ${part.of} clients` +
    (part.columns.client.length < part.of ? `; the table holds the ${part.columns.client.length} worst and best` : "");
};

const heads = () => {
  byId("people-head").replaceChildren(...Object.keys(part.columns).map((name) => {
    const sorter = element("button", { type: "button", textContent: name });
    const head = element("th", { className: isText(name) ? "" : "number", scope: "col" }, sorter);
    head.setAttribute("aria-sort", "none");
    sorter.addEventListener("click", () => {
      sorting = { column: name, down: sorting && sorting.column === name ? !sorting.down : false };
      for (const other of byId("people-head").cells) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      fillTable();
    });
    return head;
  }));
};

/** A client's accuracy beside the reference's in the same seed; of several seeds the mean, from lowest to highest. */
const accuracyOf = (id) => {
  const beside = data.parts.filter((p) => p.title === data.reference && p.seed === part.seed && p !== part);
  const points = [];
  for (const one of [part, ...beside]) {
    const at = one.columns.client.indexOf(id);
    const value = (values, t) => (values && values[at][t] !== null ? values[at][t] / 10 : null);
    if (at >= 0) one.rounds.forEach((round, t) => {
      const row = { round, accuracy: value(one.series, t), series: one.title };
      if (one.low) Object.assign(row, { low: value(one.low, t), high: value(one.high, t) });
      if (row.accuracy !== null) points.push(row);
    });
  }
  const titles = [part, ...beside].map((p) => p.title);
  const y = (field) => ({ field, type: "quantitative", title: "test accuracy (%)", scale: { zero: false } });
  const band = { mark: { type: "area", opacity: 0.18 }, encoding: { y: y("low"), y2: { field: "high" } } };
  const share = (part.columns["majority %"] || [])[part.columns.client.indexOf(id)];
  const constant = missing(share) ? [] : [{
    data: { values: [{ "always its most frequent class": share }] },
    mark: { type: "rule", strokeDash: [2, 2], tooltip: { content: "data" } },
    encoding: { x: null, color: null, y: { field: "always its most frequent class", type: "quantitative" } },
  }];
  const count = part.rounds.length;
  const thin = count < part.allRounds ? ` (${count} of ${part.allRounds} rounds)` : "";
  const dotted = constant.length ? "; dotted: always its most frequent class" : "";
  return small(`Accuracy over rounds${part.low ? ", mean and range of seeds" : ""}${thin}${dotted}`, {
    data: { values: points },
    encoding: {
      x: { field: "round", type: "quantitative", axis: { tickMinStep: 1, grid: false, tickCount: 4 }, scale: { zero: false, nice: false } },
      color: { field: "series", type: "nominal", title: null, scale: { domain: titles, range: titles.map((t) => data.methods[t]) }, legend: { orient: "bottom", symbolOpacity: 1 } },
    },
    layer: [...constant, ...(part.low ? [band] : []), { mark: { type: "line", tooltip: true, point: points.length < 3 }, encoding: { y: y("accuracy") } }],
  });
};

const labelsOf = (counts) => small("Training samples by class", {
  data: { values: counts.map((samples, c) => ({ class: className(c), samples })) },
  mark: { type: "bar", tooltip: true, color: data.methods[part.title] },
  encoding: {
    x: { field: "class", type: "nominal", sort: null, axis: { labelAngle: counts.length > 4 && className(0).length > 3 ? -45 : 0, labelOverlap: true, labelLimit: 90 } },
    y: { field: "samples", type: "quantitative", axis: { tickCount: 4 } },
  },
});

const partnersOf = (from) => small("Learned most from (mean weight)", {
  height: { step: 18 },
  data: { values: from.map(([j, weight]) => ({ client: nameOf(j), weight })) },
  mark: { type: "bar", tooltip: true, color: data.methods[part.title] },
  encoding: {
    y: { field: "client", type: "nominal", sort: null, title: null, axis: { labelLimit: 110 } },
    x: { field: "weight", type: "quantitative", axis: { tickCount: 4 } },
  },
});

const fellowsOf = (id, i) => {
  const mine = part.columns.cluster[i];
  const fellows = part.columns.client.filter((c, n) => c !== id && !missing(mine) && part.columns.cluster[n] === mine);
  const text = fellows.length ? fellows.slice(0, 40).map(nameOf).join(", ") + (fellows.length > 40 ? " …" : "") : "Nobody";
  return element("div", {}, element("h3", { textContent: "Learned with, in the cluster of the last fifth of the run" }), element("p", { textContent: text }));
};

const open = (row, i) => {
  const opener = row.querySelector("button"), next = row.nextElementSibling;
  const isOpen = next && next.classList.contains("detail");
  opener.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    forget(next);
    next.remove();
    return;
  }
  const id = part.columns.client[i];
  const counts = part.labels === null ? null : data.shared[part.labels][i];
  const from = part.partners && part.partners[i];
  const inner = element("div", { className: "small" });
  row.after(element("tr", { className: "detail" }, element("td", { colSpan: row.cells.length }, inner)));
  inner.append(accuracyOf(id));
  if (counts) inner.append(labelsOf(counts));
  if (from && from.length) inner.append(partnersOf(from));
  else if (part.columns.cluster) inner.append(fellowsOf(id, i));
};

byId("filter").addEventListener("input", fillTable);
byId("people-csv").addEventListener("click", () => {
  const names = Object.keys(part.columns);
  const seed = data.parts.some((p) => p !== part && p.title === part.title) ? `-seed${part.seed ?? "s"}` : "";
  save(`clients-${part.title}${seed}.csv`, "text/csv", csv([names, ...rowsInOrder().map((i) => names.map((n) => part.columns[n][i]))]));
});
