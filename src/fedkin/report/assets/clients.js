// The table of the clients of one run, next to another method: sorted, filtered, ten rows until more are asked for.
let part = null, beside = null; // the run that is shown; the run that each client is compared with, if the page has it
let sorting = null, whole = false, printing = false;
const rowsPlace = byId("people-rows");
const nameOf = (i) => {
  const names = data.shared[part.names];
  if (names) return names[i];
  const at = part.columns.name ? part.columns.client.indexOf(i) : -1; // of very many clients only those of the table are known
  return (at >= 0 && part.columns.name[at]) || String(i);
};
const clientName = (i) => (part.columns.name ? nameOf(i) : `client ${i}`);
const groupLetter = (index) => (index >= 26 ? groupLetter(Math.floor(index / 26) - 1) : "") + String.fromCharCode(65 + (index % 26));
const groupColour = (index) => (index < 0 ? "var(--same)" : `var(--g${(index % 12) + 1})`);
const groupOf = (i) => {
  const { group, cluster } = part.columns;
  if (group) return missing(group[i]) ? -1 : group[i];
  return !cluster || missing(cluster[i]) || !part.relations.letters.length ? -1 : part.relations.letters[cluster[i]] ?? -1;
};
const groupName = (index) => (part.columns.group ? String(index) : groupLetter(index));

/** What is shown of each client: figures in per cent, gain and chance against the method it is compared with. */
const people = () => {
  const c = part.columns, over = byId("other").value, known = c[`gain over ${over}`];
  return c.client.map((id, i) => {
    const at = beside ? beside.columns.client.indexOf(id) : -1;
    const acc = c["accuracy %"][i];
    const other = at >= 0 ? beside.columns["accuracy %"][at] : null;
    let gain = known ? known[i] : missing(acc) || missing(other) ? null : acc - other;
    if (!over) gain = null;
    const half = c["± at 95 %"] ? c["± at 95 %"][i] : null;
    return {
      i, id, at, acc, gain, half, before: missing(other) && !missing(gain) ? acc - gain : other,
      kind: missing(gain) || Math.abs(gain) < 0.05 ? 0 : Math.sign(gain), p: (c[`p over ${over}`] || [])[i], strong: !!(c[`clear over ${over}`] || [])[i],
      name: clientName(id), group: groupOf(i), samples: c["training samples"] ? c["training samples"][i] : null,
      took: c["rounds taken part"][i], seeds: (c[`seeds above ${over}`] || [])[i], test: c["test samples"][i],
      mix: part.labels === null ? null : data.shared[part.labels][i],
    };
  });
};

// ---- small pictures in cells
const picture = (width, height, says, ...inner) =>
  drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": says }, ...inner);
const mixOf = (counts) => {
  const top = Math.max(1, ...counts), w = Math.min(9, 108 / counts.length);
  return picture(w * counts.length, 20, `samples per class: ${counts.join(", ")}`, counts.map((n, k) =>
    drawn("rect", { x: k * w + 0.5, y: 20 - Math.max(1, (20 * n) / top), width: Math.max(1, w - 1.5), height: Math.max(1, (20 * n) / top),
      fill: n ? "var(--ink-2)" : "var(--line-2)" })));
};
const dumbbell = (one, low) => {
  const x = (v) => 6 + ((v - low) / Math.max(1, 100 - low)) * 92;
  const colour = `var(--${one.kind > 0 ? "gain" : one.kind < 0 ? "loss" : "same"})`;
  return picture(104, 20, `before ${fixed(one.before)} per cent, now ${fixed(one.acc)} per cent`,
    drawn("line", { x1: 6, x2: 98, y1: 10, y2: 10, stroke: "var(--line)" }),
    drawn("line", { x1: x(one.before), x2: x(one.acc), y1: 10, y2: 10, stroke: colour, "stroke-width": 3 }),
    drawn("circle", { cx: x(one.before), cy: 10, r: 3.5, fill: "var(--surface)", stroke: "var(--same)", "stroke-width": 1.5 }),
    drawn("circle", { cx: x(one.acc), cy: 10, r: 4, fill: colour }));
};
const gainBar = (one, top) => {
  const name = one.kind > 0 ? "gain" : "loss", width = phone() ? 64 : 112, middle = width / 2;
  const size = one.kind ? Math.max(1, (Math.abs(one.gain) / top) * (middle - 2)) : 0;
  const bar = drawn("rect", { x: one.kind > 0 ? middle : middle - size, y: 5, width: size, height: 10, rx: 1.5,
    fill: `var(--${name}${one.strong ? "" : "-soft"})`, stroke: `var(--${name})` });
  const made = picture(width, 20, "", drawn("line", { x1: middle, x2: middle, y1: 0, y2: 20, stroke: "var(--line-2)" }), ...(size ? [bar] : []));
  made.setAttribute("aria-hidden", "true");
  return made;
};
const pathOf = (one, at, width, height) => {
  const last = one.rounds.at(-1), first = one.rounds[0];
  const points = one.series[at].map((v, t) => (missing(v) ? null : [((one.rounds[t] - first) / Math.max(1, last - first)) * (width - 4) + 2, height - 3 - (v / 1000) * (height - 6)]));
  return points.filter(Boolean).map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
};
const sparkline = (one) => {
  const width = phone() ? 80 : 136;
  const lines = [[beside, one.at, "var(--same)", 1.2], [part, one.i, data.methods[part.title].colour, 1.6]];
  return picture(width, 28, `${one.name} over rounds`, lines.filter(([p, at]) => p && at >= 0).map(([p, at, stroke, w]) =>
    drawn("path", { d: pathOf(p, at, width, 28), fill: "none", stroke, "stroke-width": w, "stroke-linejoin": "round" })));
};

// ---- columns: name, heading, classes, sort key, cell
const cells = (one, scale) => ({
  client: () => {
    const opener = element("button", { type: "button", className: "cbtn", textContent: part.columns.name ? one.name : String(one.id) });
    opener.setAttribute("aria-label", `Open ${one.name}`);
    if (part.columns.name) opener.title = one.name;
    return opener;
  },
  group: () => (one.group < 0 ? "–" : element("span", { className: "grp" },
    Object.assign(element("span", { className: "dotg" }), { style: `background:${groupColour(one.group)}` }), groupName(one.group))),
  samples: () => fixed(one.samples, 0),
  mix: () => (one.mix ? mixOf(one.mix) : "–"),
  accuracy: () => (missing(one.before) || missing(one.acc) ? fixed(one.acc) : element("span", { className: "row" },
    element("span", { className: "mut", textContent: fixed(one.before) }), dumbbell(one, scale.low), element("span", { textContent: fixed(one.acc) }))),
  gain: () => element("span", { className: "row" },
    element("span", { className: one.kind > 0 ? "up" : one.kind < 0 ? "down" : "", textContent: signed(one.gain) }),
    ...(missing(one.gain) ? [] : [gainBar(one, scale.top)])),
  chance: () => (one.seeds ? `above in ${one.seeds}` : !one.kind || missing(one.p) ? "–" : one.strong ? "clear" : one.p < 0.01 ? "< 0.01" : one.p.toFixed(2)),
  course: () => sparkline(one),
  took: () => String(one.took),
});
const columns = () => {
  const over = byId("other").value, c = part.columns;
  const found = [["client", "Client", "", (o) => (c.name ? o.name : o.id)]];
  if (c.group || (c.cluster && part.relations.letters.length)) found.push(["group", "Group", "hp", (o) => o.group]);
  if (c["training samples"]) found.push(["samples", "Training samples", "n hp hs", (o) => o.samples]);
  if (part.labels !== null) found.push(["mix", "Class mix", "hp hs", null]);
  found.push(["accuracy", over ? `${over === data.alone ? "Alone" : over} → ${part.title}` : "Accuracy %", over ? "hp hx" : "n", (o) => o.acc]);
  if (over) found.push(["gain", "Gain, points", "", (o) => o.gain], ["chance", part.seed === null ? "Seeds" : "p", "hp hm", (o) => (part.seed === null ? +o.strong : o.p)]);
  found.push(["course", over && !phone() && beside ? `Over rounds (grey: ${over === data.alone ? "alone" : over})` : "Over rounds", "", null]);
  found.push(["took", "Rounds", "n hp hm", (o) => o.took]);
  return found;
};
const matches = (one, wanted) => {
  const kinds = { higher: 1, lower: -1, equal: 0 };
  if (!wanted) return true;
  if (wanted in kinds && !missing(one.gain)) return one.kind === kinds[wanted];
  const group = /^group (\S+)$/.exec(wanted);
  if (group) return one.group >= 0 && groupName(one.group).toLowerCase() === group[1];
  return part.columns.name && one.name.toLowerCase().includes(wanted) || String(one.id) === wanted;
};
const ordered = () => {
  const wanted = byId("filter").value.trim().toLowerCase();
  const key = (columns().find(([name]) => name === sorting.column) || columns()[0])[3];
  return people().filter((one) => matches(one, wanted)).sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (missing(x) || missing(y)) return missing(x) - missing(y) || a.id - b.id; // what is not known stays last either way
    return (sorting.down ? -1 : 1) * (typeof x === "string" ? x.localeCompare(y) : x - y) || a.id - b.id;
  });
};

/** Whether there are several seeds whose clients differ. */
const apart = () => !data.joint && data.parts.filter((p) => p.title === part.title).length > 1;
const fillTable = () => {
  const found = ordered(), most = phone() ? 6 : 10, shown = whole || printing ? found : found.slice(0, most);
  const gains = found.map((one) => Math.abs(one.gain || 0)), accuracies = found.flatMap((one) => [one.acc, one.before]).filter((v) => !missing(v));
  const scale = { top: Math.max(5, ...gains), low: Math.min(90, 10 * Math.floor(Math.min(100, ...accuracies) / 10)) };
  const names = columns();
  rowsPlace.replaceChildren(...shown.map((one) => {
    const made = cells(one, scale);
    const row = element("tr", { className: "client" }, names.map(([name, , kind], n) => {
      const cell = element(n ? "td" : "th", { className: kind }, made[name]());
      if (!n) cell.scope = "row";
      return cell;
    }));
    row.dataset.client = one.id;
    row.addEventListener("click", () => openClient(one.id));
    return row;
  }));
  byId("all").hidden = found.length <= most || printing;
  byId("all").textContent = whole ? "Show fewer" : `Show all ${found.length} clients`;
  const by = names.find(([name]) => name === sorting.column) || names[0];
  const how = by[0] === "gain" && !sorting.down ? "worst gain first" : `by ${by[1].toLowerCase()}`;
  byId("count").textContent = (found.length ? `${shown.length} of ${part.of} clients, ${how}` : "No client matches.") +
    (part.columns.client.length < part.of ? `; the table has the ${part.columns.client.length} worst and best` : "") +
    (part.note ? `. ${part.note}` : apart() ? ". Clients have no names: client 3 of one seed need not be client 3 of another." : "");
};

const heads = () => {
  byId("people-head").replaceChildren(...columns().map(([name, text, kind, key]) => {
    const head = element("th", { className: kind, scope: "col" });
    if (!key) {
      head.textContent = text;
      return head;
    }
    const sorter = element("button", { type: "button", className: "sort", textContent: text });
    head.append(sorter);
    const mark = () => head.setAttribute("aria-sort", sorting.column !== name ? "none" : sorting.down ? "descending" : "ascending");
    mark();
    sorter.addEventListener("click", () => {
      sorting = { column: name, down: sorting.column === name ? !sorting.down : false };
      heads();
      fillTable();
      all("button.sort", byId("people-head")).find((one) => one.textContent === text).focus();
    });
    return head;
  }));
};

/** The heading of the section: how many were measured lower, and by name those that are clear by themselves. */
const clientsFact = () => {
  const over = byId("other").value, found = people();
  if (!over || found.every((one) => missing(one.gain))) return "Clients";
  const lower = found.filter((one) => one.kind < 0), clear = lower.filter((one) => one.strong).sort((a, b) => a.gain - b.gain);
  const than = `with ${part.title} than ${data.solo.includes(over) ? "alone" : `with ${over}`}`;
  const said = clear.slice(0, 2).map((one) => `${one.name} (${signed(one.gain)})`);
  const rest = clear.length > 2 ? [...said, `${clear.length - 2} more`] : said;
  return `${lower.length || "No"} client${lower.length === 1 ? "" : "s"} measured lower ${than}${clear.length ? `; clear: ${listed(rest)}` : ""}`;
};

/** The methods that a client can be compared with: those with known gains, and all others of the same seed. */
const fillOthers = (wanted) => {
  const known = Object.keys(part.columns).filter((name) => name.startsWith("gain over ")).map((name) => name.slice(10));
  const titles = data.parts.filter((p) => p.seed === part.seed && p.title !== part.title).map((p) => p.title);
  const found = [...new Set([...known, ...data.order.filter((t) => titles.includes(t))])];
  const other = byId("other");
  other.replaceChildren(...found.map((title) => element("option", { value: title, textContent: title === data.alone ? "training alone" : title })));
  other.value = found.includes(wanted) ? wanted : found[0] || "";
  other.parentElement.hidden = !found.length;
};
const showPeople = () => {
  const over = byId("other").value;
  beside = data.parts.find((p) => p.title === over && p.seed === part.seed) || null;
  byId("clients-fact").textContent = clientsFact();
  heads();
  fillTable();
  showPairs();
};
byId("other").addEventListener("change", showPeople);
byId("filter").addEventListener("input", fillTable);
byId("all").addEventListener("click", () => {
  whole = !whole;
  fillTable();
});
byId("people-csv").addEventListener("click", () => {
  const names = Object.keys(part.columns);
  const seed = data.parts.some((p) => p !== part && p.title === part.title) ? `-seed${part.seed ?? "s"}` : "";
  save(`clients-${part.title}${seed}.csv`, "text/csv", csv([names, ...ordered().map((one) => names.map((n) => part.columns[n][one.i]))]));
});

/** Two methods client by client: a mark for each, above the diagonal where the method picked is better. */
const showPairs = () => {
  const place = byId("pairs-chart"), found = people().filter((one) => !missing(one.before) && !missing(one.acc));
  forget(place);
  place.replaceChildren();
  byId("pairs").hidden = !found.length;
  if (!byId("pairs").open || !found.length) return;
  const over = byId("other").value, low = 10 * Math.floor(Math.min(...found.flatMap((one) => [one.before, one.acc])) / 10);
  const kind = { 1: "above", 0: "equal", "-1": "below" };
  const axis = (field, title) => ({ field, type: "quantitative", title, scale: { domain: [Math.min(low, 90), 100], nice: false }, axis: { tickCount: 5 } });
  const alone = over === data.alone ? "training alone" : over;
  place.append(small(`Accuracy of each client in %: above the line ${part.title} is higher, below it ${alone}`, {
    height: 380,
    data: { values: found.map((one) => ({ client: one.name, id: one.id, with: one.acc, over: one.before, gain: one.gain, kind: kind[one.kind] })) },
    layer: [
      { data: { values: [{ a: Math.min(low, 90), b: 100 }] }, mark: { type: "rule", color: "var(--line-2)" },
        encoding: { x: axis("a", alone), y: axis("a", part.title), x2: { field: "b" }, y2: { field: "b" } } },
      { mark: { type: "point", filled: true, size: found.length > 100 ? 25 : 60, opacity: 0.8, cursor: "pointer" },
        encoding: { x: axis("over", alone), y: axis("with", part.title),
          tooltip: [{ field: "client" }, { field: "with", title: "with it" }, { field: "over", title: "compared with" }, { field: "gain" }],
          shape: { field: "kind", legend: null, scale: { domain: ["above", "equal", "below"], range: ["circle", "circle", "triangle-down"] } },
          color: { field: "kind", legend: null, scale: { domain: ["above", "equal", "below"], range: ["var(--gain)", "var(--same)", "var(--loss)"] } } } },
    ],
  }, (row) => row.id !== undefined && openClient(row.id)));
};
byId("pairs").addEventListener("toggle", showPairs);
