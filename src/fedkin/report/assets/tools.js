// What the rest of the script uses: elements, numbers, files, light and dark. All data stand in the page.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const all = (what, within = document) => [...within.querySelectorAll(what)];
const element = (tag, props = {}, ...inner) => {
  const made = Object.assign(document.createElement(tag), props);
  made.append(...inner.flat().filter((one) => one !== null && one !== undefined));
  return made;
};
const drawn = (tag, attributes, ...inner) => {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...inner.flat());
  return made;
};
const phone = () => innerWidth < 600;

// ---- numbers
const missing = (v) => v === null || v === undefined;
const fixed = (v, digits = 1) => (missing(v) ? "–" : v.toFixed(digits));
const signed = (v) => {
  if (missing(v)) return "–";
  const text = Math.abs(v).toFixed(1);
  return text === "0.0" ? text : (v < 0 ? "−" : "+") + text;
};
const called = (title) => (data.methods[title] || { name: title }).name;
const listed = (items) => (items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);

// ---- files
const save = (name, kind, text) => {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};
const csv = (rows) =>
  rows.map((row) => row.map((v) => {
    let text = missing(v) ? "" : String(v);
    if (/^[=+\-@\t\r\n]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`; // a spreadsheet must not compute it
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\r\n") + "\r\n";
for (const one of all("button[data-csv]")) {
  one.addEventListener("click", () => {
    const cells = (row) => [...row.cells].map((c) => c.dataset.value ?? c.textContent);
    save(`${one.dataset.csv}.csv`, "text/csv", csv([...byId(one.dataset.csv).rows].map(cells)));
  });
}
const toggle = (buttons, act) => {
  for (const one of buttons) {
    one.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === one));
      act(one.dataset);
    });
  }
};

// ---- light and dark
const wishes = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const isDark = () => (document.documentElement.dataset.theme || (wishes.matches ? "dark" : "light")) === "dark";
const charts = new Set(); // what is drawn, to be drawn again in other colours
const recolour = () => {
  byId("theme").setAttribute("aria-label", `${isDark() ? "Light" : "Dark"} colours`);
  for (const chart of charts) if (chart.drawn) chart.draw();
};
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  recolour();
});
wishes.addEventListener("change", recolour);
/** A chart's colours: its tokens are those of the page. */
const coloured = (spec) => {
  const tokens = getComputedStyle(document.documentElement);
  return JSON.parse(JSON.stringify(spec).replace(/var\(--([\w-]+)\)/g, (_, name) => tokens.getPropertyValue(`--${name}`).trim()));
};
