// The live page: asks for the runs and for the clients of one of them, and draws what has changed.

import { draw, element, hideTip, percent, showTip, valueAt } from "./charts.js";
import { asked, clearClients, keep, kept, onClient, render as renderClients, showClients } from "./clients.js";
import { isRunning, showTable } from "./table.js";

const $ = (id) => document.getElementById(id);
const EVERY = 2000, HIDDEN = 15000, GROUPS = { method: "method", data: "data", seed: "seed", comparison: "folder above", none: "nothing" };
const remembered = JSON.parse(sessionStorage.getItem("fedkin-live") ?? "{}");
const state = { filter: "", group: "method", lines: "mean", run: null, follow: true, theme: "", ...remembered,
  off: new Set(remembered.off ?? []) };
let runs = [], folder = "", versions = {}, chart = null, drawn = [], failures = 0, timer = 0;
if (remembered.client !== undefined) keep(remembered.client);

function remember() {
  sessionStorage.setItem("fedkin-live", JSON.stringify({ ...state, off: [...state.off], client: kept }));
}

// ---- what is asked of the server

async function get(name, query = {}) {
  const key = `${name}?${new URLSearchParams(query)}`;
  const seen = versions[name]?.key === key ? { seen: versions[name].version } : {};
  const answer = await fetch(`${name}?${new URLSearchParams({ ...query, ...seen })}`, { cache: "no-store" });
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  const found = await answer.json();
  versions[name] = { key, version: answer.headers.get("Version") };
  return found;
}

async function poll() {
  clearTimeout(timer);
  try {
    const found = await get("runs.json");
    if (found) { receive(found); render(); }
    await askClients();
    failures = 0;
  } catch (error) {
    failures += 1;
  }
  connection();
  document.documentElement.dataset.ready = "";
  clearTimeout(timer);
  timer = setTimeout(poll, document.hidden || failures > 3 ? HIDDEN : EVERY);
}

function connection() {
  const lost = failures > 1;
  $("status").classList.toggle("lost", lost);
  const text = !lost ? "" : `Not connected: the command has ended, or this page's server has. Look again: fedkin runs ${folder} --open`;
  if ($("status").textContent !== text) $("status").textContent = text;
}

let asking = Promise.resolve();
/** One request after the other, each for what is selected when it is its turn. */
function askClients() {
  asking = asking.catch(() => {}).then(async () => {
    if (state.run === null) return;
    const client = asked(), query = { run: state.run, ...(client === null ? {} : { client }) };
    const found = await get("clients.json", query);
    if (found && found.run === state.run) {
      if (found.clients.length) showClients(found); else clearClients();
      trouble(found);
    }
  });
  return asking;
}

function receive(found) {
  folder = found.folder;
  runs = found.runs.map((run) => ({ ...run, slot: found.slots[run.method] ?? 0 }));
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  options({ ...GROUPS, ...Object.fromEntries(names.map((name) => [`=${name}`, name])) });
  const running = runs.find(isRunning);
  if (state.follow && running) choose(running.id);
  else if (!runs.some((run) => run.id === state.run)) choose(runs[0]?.id ?? null);
}

function choose(id) {
  if (state.run === id) return;
  state.run = id;
  delete versions["clients.json"];
}

function options(wanted) {
  const select = $("group");
  if ([...select.options].map((o) => o.value).join("\n") !== Object.keys(wanted).join("\n")) {
    select.replaceChildren(...Object.entries(wanted).map(([value, text]) => new Option(text, value)));
  }
  if (!(state.group in wanted)) state.group = "method";
  select.value = state.group;
}

// ---- groups and filter

function keyOf(run) {
  if (state.group === "none") return run.folder;
  if (state.group === "comparison") return run.folder.includes("/") ? run.folder.slice(0, run.folder.lastIndexOf("/")) : "–";
  if (state.group.startsWith("=")) return `${state.group.slice(1)} ${run.settings[state.group.slice(1)] ?? "–"}`;
  if (state.group === "seed") return `seed ${run.seed ?? "–"}`;
  const several = state.group === "method" && new Set(runs.map((one) => one.data)).size > 1; // no mean over data sets
  return several ? `${run.method}, ${run.data}` : run[state.group];
}

function matches(run) {
  const settings = Object.entries(run.settings).map(([name, value]) => `${name}=${value}`).join(" ");
  const text = `${run.folder} ${run.method} ${run.data} seed=${run.seed} ${run.state} ${settings}`.toLowerCase();
  return state.filter.toLowerCase().split(/\s+/).every((part) => text.includes(part));
}

function grouped(shown) {
  const groups = new Map();
  for (const run of shown) {
    const key = keyOf(run);
    if (!groups.has(key)) groups.set(key, { name: key, runs: [], slot: 0 });
    groups.get(key).runs.push(run);
  }
  const all = [...new Set(runs.map(keyOf))]; // also of hidden runs: a filter changes no colour
  for (const group of groups.values()) {
    group.slot = state.group === "method" ? group.runs[0].slot : (all.indexOf(group.name) % 12) + 1;
  }
  return [...groups.values()];
}

/** The mean of the runs of a group in the rounds in which all of them that came so far were evaluated. */
function mean(group) {
  const values = new Map();
  for (const run of group) for (const [r, v] of run.curve) values.set(r, [...(values.get(r) ?? []), v]);
  return [...values].filter(([, v]) => v.length === group.length).sort((a, b) => a[0] - b[0])
    .map(([r, v]) => [r, v.reduce((a, b) => a + b, 0) / v.length]);
}

// ---- drawing

function render() {
  $("where").textContent = folder;
  document.title = `${runs.some(isRunning) ? "● " : ""}fedkin live: ${folder}`;
  const shown = runs.filter(matches), groups = grouped(shown);
  $("count").textContent = shown.length === runs.length ? `${runs.length} runs` : `${shown.length} of ${runs.length} runs`;
  showTable(groups, state, calls);
  curves(groups);
  selected();
}

function curves(groups) {
  const series = [];
  drawn = [];
  for (const group of groups) {
    const there = group.runs.filter((run) => !state.off.has(run.id) && run.curve.length);
    if (!there.length) continue;
    const several = there.length > 1, average = state.lines === "mean" && several;
    const middle = average ? mean(there) : [];
    for (const run of there) {
      const kind = average && middle.length ? "thin" : run.id === state.run ? "picked" : "";
      series.push({ name: several ? "" : group.name, slot: group.slot, curve: run.curve, kind });
    }
    const curve = middle.length ? middle : there[0].curve;
    if (middle.length) series.push({ name: group.name, slot: group.slot, curve, kind: "mean" });
    else if (several) series.find((s) => s.curve === curve).name = group.name;
    drawn.push({ name: group.name, curve, runs: there.length, average: middle.length > 0 });
  }
  const last = Math.max(1, ...runs.filter((r) => matches(r) && !state.off.has(r.id)).map((r) => r.planned ?? r.done));
  chart = draw($("curves"), series, last);
  chart.rule = element("line", { class: "rule", y1: chart.box.top, y2: chart.box.bottom, visibility: "hidden" });
  chart.svg.prepend(chart.rule);
  const ends = drawn.map((d) => `${d.name} ${percent(d.curve[d.curve.length - 1][1])}%`);
  $("curves").setAttribute("aria-label", `Accuracy over ${last} rounds, mean over clients. Latest: ${ends.join("; ")}`);
}

/** The values of all groups in a round, the highest first. */
function valuesIn(round) {
  return drawn.map((d) => [d, valueAt(d.curve, round)]).filter(([, v]) => v !== null).sort((a, b) => b[1] - a[1])
    .map(([d, v]) => `${d.name}${d.average ? ` (mean of ${d.runs})` : ""} ${percent(v)}%`);
}

function selected() {
  const run = runs.find((r) => r.id === state.run);
  $("h-run").textContent = run ? `${run.method}, ${run.folder}` : "No run yet";
  const place = run?.of ? `, run ${run.number} of ${run.of}` : "";
  $("round").textContent = run ? `Round ${run.done} of ${run.planned ?? "–"}${place}` : "";
  $("progress").value = run?.planned ? run.done / run.planned : 0;
  if (!run) { clearClients(); $("facts").textContent = "This page fills as soon as a run begins."; return; }
  const left = run.left === null ? run.state : `${run.state}, about ${duration(run.left)} left`;
  $("facts").textContent = `${percent(run.value)}% ${run.metric === "accuracy" ? "test" : "validation"} accuracy, mean over clients · ${left}`;
}

function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function trouble(found) {
  const said = [];
  for (const [what, some] of [["refused", found.refused], ["missing", found.missing]]) {
    const entries = Object.entries(some);
    if (!entries.length) continue;
    const listed = entries.slice(0, 5).map(([client, why]) => `client ${client}: ${why}`).join("; ");
    said.push(`Round ${found.last}: ${entries.length} ${what} (${listed}${entries.length > 5 ? "; …" : ""}).`);
  }
  if (found.damaged) said.push(`${found.damaged} damaged lines were skipped; fedkin report names them.`);
  $("trouble").hidden = !said.length;
  $("trouble").textContent = said.join(" ");
  const mb = (bytes) => (bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 });
  $("progress").title = `${mb(found.bytes_up)} MB up, ${mb(found.bytes_down)} MB down`;
  $("round").title = $("progress").title;
}

// ---- what a reader does

const calls = {
  check(ids, on) {
    for (const id of ids) if (on) state.off.delete(id); else state.off.add(id);
    changed();
  },
  select(id) {
    state.follow = $("follow").checked = false;
    keep(null);
    choose(id);
    changed();
    askClients().catch(() => {});
  },
};

function changed() {
  remember();
  render();
}

function bind(id, name, event) {
  $(id).value = state[name];
  $(id).addEventListener(event, () => { state[name] = $(id).value; changed(); });
}

bind("filter", "filter", "input");
bind("lines", "lines", "change");
$("group").addEventListener("change", () => { state.group = $("group").value; changed(); });
$("all").addEventListener("click", () => calls.check(runs.filter(matches).map((r) => r.id), true));
$("none").addEventListener("click", () => calls.check(runs.filter(matches).map((r) => r.id), false));
$("follow").checked = state.follow;
$("follow").addEventListener("change", () => {
  state.follow = $("follow").checked;
  const running = runs.find(isRunning);
  if (state.follow && running) { choose(running.id); askClients().catch(() => {}); }
  changed();
});
onClient(() => { remember(); askClients().catch(() => {}); });

function theme() {
  if (state.theme) document.documentElement.dataset.theme = state.theme;
}
$("theme").setAttribute("aria-label", "Switch between light and dark");
$("theme").addEventListener("click", () => {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  state.theme = dark ? "light" : "dark";
  theme();
  remember();
});
theme();

let round = 1;
function pointRound(number, event) {
  round = Math.max(1, Math.min(number, chart ? Math.max(...runs.map((r) => r.planned ?? r.done), 1) : 1));
  const texts = valuesIn(round);
  chart.rule.setAttribute("x1", chart.x(round));
  chart.rule.setAttribute("x2", chart.x(round));
  chart.rule.setAttribute("visibility", "visible");
  if (event && texts.length) showTip([`Round ${round}`, ...texts.slice(0, 14), ...(texts.length > 14 ? ["…"] : [])].join("\n"), event);
  else $("curves-say").textContent = texts.length ? `Round ${round}: ${texts.slice(0, 8).join(", ")}` : "";
}
$("curves").addEventListener("pointermove", (event) => {
  if (chart) pointRound(chart.round(event.clientX - $("curves").getBoundingClientRect().left), event);
});
$("curves").addEventListener("pointerleave", () => { hideTip(); chart?.rule.setAttribute("visibility", "hidden"); });
$("curves").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || !chart) return;
  event.preventDefault();
  pointRound(round + step, null);
});
addEventListener("resize", () => { render(); renderClients(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();
