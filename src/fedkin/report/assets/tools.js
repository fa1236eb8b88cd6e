// What the rest of the script uses: elements, files, light and dark. All data stand in the page.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const element = (tag, props = {}, ...inner) => {
  const made = Object.assign(document.createElement(tag), props);
  made.append(...inner);
  return made;
};
const button = (text, says, act) => {
  const made = element("button", { className: "act", type: "button", textContent: text });
  made.setAttribute("aria-label", says);
  made.addEventListener("click", act);
  return made;
};

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
for (const one of document.querySelectorAll("button[data-csv]")) {
  one.addEventListener("click", () => {
    const table = byId(one.dataset.csv);
    save(`${one.dataset.csv}.csv`, "text/csv", csv([...table.rows].map((row) => [...row.cells].map((c) => c.textContent))));
  });
}

// ---- light and dark
const wishes = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const isDark = () => (document.documentElement.dataset.theme || (wishes.matches ? "dark" : "light")) === "dark";
const charts = new Set(); // what is drawn, to be drawn again in other colours
const recolour = () => {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `${isDark() ? "Light" : "Dark"} colours`);
  for (const chart of charts) if (chart.drawn) chart.draw();
};
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  recolour();
});
wishes.addEventListener("change", recolour);

// ---- paper is light
let screenTheme = null;
addEventListener("beforeprint", () => {
  screenTheme = document.documentElement.dataset.theme || "";
  document.documentElement.dataset.theme = "light";
  for (const chart of charts) chart.draw();
});
addEventListener("afterprint", () => {
  if (screenTheme) document.documentElement.dataset.theme = screenTheme;
  else delete document.documentElement.dataset.theme;
  recolour();
});
