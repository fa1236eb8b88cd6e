// Puts the page together: the figures of all runs, and the choice of the one whose clients are shown.
for (const [section, list] of Object.entries(data.figures)) {
  const place = byId(`figures-${section}`);
  for (const one of list) place.append(figure(one));
}

const seedText = (seed) => (seed === null ? "all (mean)" : String(seed));
const choose = (title, seed) => {
  const own = data.parts.filter((p) => p.title === title);
  part = own.find((p) => seedText(p.seed) === seed) || own.find((p) => p.seed === null) || own[0];
  sorting = null;
  for (const chooser of document.querySelectorAll(".chooser")) {
    chooser.querySelector(".method").value = title;
    const seeds = chooser.querySelector(".seed");
    seeds.replaceChildren(...own.map((p) => element("option", { textContent: seedText(p.seed) })));
    seeds.value = seedText(part.seed);
    chooser.querySelector(".says").textContent = part.note ||
      (own.length > 1 && !data.joint ? "Clients have no names: client 3 of one seed need not be client 3 of another." : "");
  }
  showRelations();
  heads();
  fillTable();
};
const titles = Object.keys(data.methods);
for (const chooser of document.querySelectorAll(".chooser")) {
  const [method, seed] = [chooser.querySelector(".method"), chooser.querySelector(".seed")];
  method.append(...titles.map((title) => element("option", { textContent: title })));
  method.addEventListener("change", () => choose(method.value, seedText(part.seed)));
  seed.addEventListener("change", () => choose(part.title, seed.value));
  method.parentElement.hidden = titles.length < 2;
  seed.parentElement.hidden = data.parts.length === titles.length;
  chooser.hidden = data.parts.length < 2;
}

recolour();
if (data.parts.length) choose(data.first, null);
// what has not been scrolled to is drawn when there is time, so that it is there for printing
const idle = window.requestIdleCallback || ((act) => setTimeout(act, 200));
const drawOne = () => {
  const next = [...charts].find((chart) => !chart.drawn);
  if (!next) return;
  next.first();
  idle(drawOne);
};
idle(drawOne);
document.documentElement.dataset.ready = "yes";
