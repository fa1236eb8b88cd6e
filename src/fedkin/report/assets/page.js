// Puts the page together: one method for the whole page, one seed for the parts about single clients.
const seedText = (seed) => (seed === null ? "all (mean)" : String(seed));
const boardsShown = new Set(data.shown);
let picked = null;

/** Shows a method on the whole page, and of its seeds the one asked for, else their mean, else the first. */
const pick = (title, seed = undefined) => {
  const seeds = data.parts.filter((p) => p.title === title);
  const wanted = seed === undefined && part ? part.seed : seed;
  picked = title;
  byId("method").value = title;
  for (const one of all(".by-method")) one.hidden = one.dataset.method !== title;
  for (const row of all("tr[data-method]")) {
    row.classList.toggle("on", row.dataset.method === title);
    row.hidden = row.classList.contains("rest") && row.dataset.method !== title && !boardsShown.has(row.dataset.method);
  }
  for (const one of all("button[data-pick]")) one.setAttribute("aria-pressed", String(one.dataset.pick === title));
  const shown = data.order.filter((t) => boardsShown.has(t) || t === title);
  for (const chart of charts) {
    chart.signal("shown", shown);
    chart.signal("method", title);
    if (chart.holder.dataset.chart === "gains") showRows(chart, shown);
  }
  const found = seeds.find((p) => p.seed === wanted) || seeds.find((p) => p.seed === null) || seeds[0];
  if (found) choose(found, seeds);
};
/** The rows of the board: as many as the table has. */
const showRows = (chart, shown) => {
  const y = chart.spec.layer.map((l) => l.encoding && l.encoding.y).filter((c) => c && c.scale && c.scale.domain);
  chart.every ||= [...y[0].scale.domain];
  const rows = chart.every.filter((t) => shown.includes(t));
  if (rows.join("\n") === y[0].scale.domain.join("\n")) return;
  for (const channel of y) channel.scale.domain = rows;
  if (chart.drawn) chart.draw();
};
const choose = (found, seeds) => {
  const other = part && byId("other").value;
  part = found;
  byId("seed").replaceChildren(...seeds.map((p) => element("option", { value: seedText(p.seed), textContent: seedText(p.seed) })));
  byId("seed").value = seedText(part.seed);
  byId("seed").parentElement.hidden = seeds.length < 2;
  fillOthers(other || data.reference);
  const gains = Object.keys(part.columns).some((name) => name.startsWith("gain over "));
  sorting = { column: gains || byId("other").value ? "gain" : "accuracy", down: false };
  whole = false;
  showPeople();
  showRelations();
};
byId("method").addEventListener("change", () => pick(byId("method").value));
byId("seed").addEventListener("change", () => {
  const seeds = data.parts.filter((p) => p.title === picked);
  choose(seeds.find((p) => seedText(p.seed) === byId("seed").value), seeds);
});
for (const one of all("button[data-pick]")) one.addEventListener("click", () => pick(one.dataset.pick));
for (const one of all("button.rows")) {
  one.addEventListener("click", () => {
    for (const title of data.order) boardsShown.add(title);
    for (const button of all("button.rows")) button.hidden = true;
    pick(picked);
  });
}
toggle(all("#ref button"), ({ ref }) => {
  for (const one of all("[data-board]")) one.hidden = one.dataset.board !== ref;
});
toggle(all("#curves button[data-show]"), ({ show }) => {
  for (const one of all("#curves .measure")) one.hidden = one.dataset.measure !== show;
});
if (byId("copy")) byId("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(byId("copy").previousElementSibling.textContent);
  byId("copy").textContent = "Copied";
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 1500);
});

// ---- paper is light, and has all clients
let screenTheme = null;
addEventListener("beforeprint", () => {
  screenTheme = document.documentElement.dataset.theme || "";
  document.documentElement.dataset.theme = "light";
  printing = true;
  for (const one of [byId("caveats"), byId("words")]) if (one) one.open = true;
  if (part) fillTable();
  for (const chart of charts) if (chart.holder.clientWidth) chart.draw();
});
addEventListener("afterprint", () => {
  if (screenTheme) document.documentElement.dataset.theme = screenTheme;
  else delete document.documentElement.dataset.theme;
  printing = false;
  if (part) fillTable();
  recolour();
});

byId("rounds-fact").textContent = data.course;
recolour();
pick(data.first);
// what has not been scrolled to is drawn when there is time, so that it is there for printing
const idle = window.requestIdleCallback || ((act) => setTimeout(act, 200));
const drawOne = () => {
  const next = [...charts].find((chart) => !chart.drawn && chart.holder.clientWidth);
  if (!next) return;
  next.first();
  idle(drawOne);
};
idle(drawOne);
document.documentElement.dataset.ready = "yes";
