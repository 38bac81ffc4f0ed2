const byId = (id) => document.getElementById(id), MAX_LINES = 16, TOP = 10;
const runs = JSON.parse(byId("runs").textContent);
const HEALTH = { complete: "good", warned: "warn", unfinished: "warn", failed: "bad", damaged: "bad" };
const colour = (k) => `var(--s${k % 8})`, dash = (k) => k < 8 ? null : "6 4";
const bestOf = (run) => run.systems.filter((one) => !one.bound && one.score != null).sort((a, b) => b.score - a.score)[0];
for (const run of runs) {
  run.best = bestOf(run);
  run.text = [run.name, run.experiment, run.summary, run.health, ...run.notes, ...run.systems.map((one) => one.name)].join(" ").toLowerCase();
}
const COLUMNS = [  // title, value to sort by, whether numbers, cell
  ["Run", (run) => run.name, false],
  ["Started", (run) => run.started, false, (run) => [make("span", { class: "whole" }, run.started.slice(0, 16).replace("T", " ") || "–")]],
  ["Best method", (run) => run.best?.name, false, (run) => [run.best?.name ?? (run.search ? `search: ${run.search.metric}` : "–")]],
  ["Score", (run) => run.best?.score ?? topTrial(run), true, (run) => [scored(run.best) ?? digits(topTrial(run))]],
  ["Score over time", null, false, (run) => [spark(run.best?.curve)]],
  ["Traffic, kbit/s", (run) => traffic(run.best), true, (run) => [digits(traffic(run.best))]],
  ["Cells", (run) => run.cells[0], true, (run) => [`${run.cells[0]} of ${run.cells[2]}`]],
  ["Health", (run) => Object.keys(HEALTH).indexOf(run.health), false, (run) => [make("span", { class: `state ${HEALTH[run.health]}` }, run.health)]],
];
const traffic = (one) => one == null || one.uplink_kbps == null ? null : one.uplink_kbps + one.downlink_kbps;
const topTrial = (run) => run.search?.trials.find(([number]) => number === run.search.best)?.[1] ?? null;
const scored = (one) => one?.score == null ? null
  : one.score.toFixed(3) + (one.low == null ? "" : ` ± ${Math.max(one.high - one.score, one.score - one.low).toFixed(3)}`);
function spark(curve) {
  const known = (curve ?? []).filter(([, value]) => value != null);
  if (known.length < 2) return "";
  const [from, to] = [known[0][0], known.at(-1)[0]], values = known.map(([, value]) => value);
  const low = Math.min(...values), span = Math.max(0.2, Math.max(...values) - low);
  const path = known.map(([x, y]) => `${(118 * (x - from) / (to - from) + 1).toFixed(1)} ${(28 - 26 * (y - low) / span).toFixed(1)}`).join("L");
  return make("svg", { class: "spark", viewBox: "0 0 120 30", "aria-hidden": "true" }, make("path", { d: `M${path}` }));
}
function rowOf(run) {
  const box = make("input", { type: "checkbox", "aria-label": `Choose ${run.name}`, onchange: () => { mark(run, box.checked); draw(); } });
  run.box = box;
  const name = run.report ? make("a", { href: run.report.split("/").map(encodeURIComponent).join("/") }, run.name) : run.name;
  const about = [run.summary || run.experiment, ...(run.report || run.health === "damaged" ? [] : ["no report.html: driftlab report writes it"])];
  const head = make("th", { scope: "row" }, name, ...about.filter(Boolean).map((text) => make("small", {}, text)),
    ...run.notes.slice(0, 1).map((text) => make("small", { class: HEALTH[run.health] }, text + (run.notes[1] ? ` And ${run.notes.length - 1} more: see the report.` : ""))));
  const cells = run.health === "damaged" ? [make("td", { colspan: 6 }), COLUMNS.at(-1)] : COLUMNS.slice(1);
  return run.row = make("tr", {}, make("td", { class: "choose" }, run.health === "damaged" ? "" : make("label", {}, box)), head,
    ...cells.map((one) => one instanceof Node ? one : make("td", { class: one[2] && "n", "data-name": one[0] }, ...one[3](run))));
}
function mark(run, on) {
  run.chosen = on;
  run.row.classList.toggle("chosen", on);
  run.box.checked = on;
}
let order = 1, down = true;
function sort(column) {
  down = column === order ? !down : COLUMNS[column][2] || column === 1;
  order = column;
  show();
}
function show() {
  const value = COLUMNS[order][1], sign = down ? -1 : 1;
  const compared = (a, b) => a == null || b == null ? (a == null) - (b == null) : sign * (a < b ? -1 : a > b ? 1 : 0);
  const words = byId("filter").value.toLowerCase().split(/\s+/), kind = byId("experiment").value, health = byId("health").value;
  const kept = runs.filter((run) => (!kind || run.experiment === kind) && (!health || run.health === health) && words.every((word) => run.text.includes(word)));
  kept.sort((a, b) => compared(value(a), value(b)));
  document.querySelector("#all tbody").replaceChildren(...kept.map((run) => run.row));
  byId("shown").textContent = runs.length ? `${kept.length} of ${runs.length} runs` : "There are no runs in this folder. Make one with driftlab demo or driftlab run.";
  document.querySelectorAll("#all thead [data-column]").forEach((head) => {
    if (+head.dataset.column === order) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  byId("sort").value = order;
}
const overlay = new Chart(byId("overlay"), { title: "Score over time of chosen runs", x: "time, s", y: "score of live predictions", height: 360, empty: "The chosen runs have no scores over time." });
function draw() {
  const chosen = runs.filter((run) => run.chosen), found = chosen.filter((run) => run.systems.length), searches = chosen.filter((run) => run.search);
  if (!byId("lines").set) byId("lines").value = found.length > 1 ? "best" : "all";
  const every = byId("lines").value === "all", alone = (run) => found.filter((one) => one.experiment === run.experiment).length === 1;
  const pairs = found.flatMap((run) => (every ? run.systems : [run.best ?? run.systems[0]]).map((one) => [run, one]));
  const title = ([run, one]) => found.length > 1 ? `${alone(run) ? run.experiment : run.name} · ${one.name}` : one.name;
  byId("chosen").hidden = !found.length;
  byId("chosen-title").textContent = found.length === 1 ? `Chosen run: ${found[0].name}` : `Chosen runs: ${found.length}`;
  overlay.draw(pairs.slice(0, MAX_LINES).map((pair, k) => ({ name: title(pair), colour: pair[1].bound ? "var(--quiet)" : colour(k), dash: pair[1].bound ? "2 4" : dash(k), points: pair[1].curve })));
  const best = Math.max(...pairs.map(([, one]) => one.bound ? -1 : one.score ?? -1));
  document.querySelector("#compare tbody").replaceChildren(...pairs.map((pair) => compared(pair, title(pair), best)),
    ...(pairs.length > MAX_LINES ? [make("tr", {}, make("td", { colspan: 7 }, `The chart shows the first ${MAX_LINES} of ${pairs.length} lines.`))] : []));
  byId("searches").hidden = !searches.length;
  if (searches.map((run) => run.name).join() !== draw.searches) {
    draw.searches = searches.map((run) => run.name).join();
    document.querySelector("#searches > div").replaceChildren();
    searches.forEach(trials);
  }
}
function compared([, one], title, best) {
  const cell = (name, text, extra = "") => make("td", { class: `n ${extra}`, "data-name": name }, text);
  return make("tr", {}, make("th", { scope: "row" }, title, one.bound ? make("small", {}, "a bound") : null), cell("Seeds", one.seeds),
    cell("Score", scored(one) ?? "–", one.score === best && "best"), cell("Up, kbit/s", digits(one.uplink_kbps)), cell("Down, kbit/s", digits(one.downlink_kbps)),
    cell("Energy, J", digits(one.energy_j)), cell("Updates", digits(one.updates)));
}
function trials(run) {
  const { metric, better, trials: all, held_out: held, best } = run.search, sign = better === "min" ? 1 : -1, part = make("div", {});
  const known = all.filter(([, value]) => value != null), sorted = [...known].sort((a, b) => sign * (a[1] - b[1]));
  const status = (name) => known.filter((one) => one[2] === name).map(([number, value]) => [number, value]);
  let top = null;
  const front = known.map(([number, value]) => [number, top = top == null ? value : sign * (value - top) < 0 ? value : top]);
  document.querySelector("#searches > div").append(make("h3", {}, run.name), part, make("p", { class: "note" }, heldOut(held, metric)), trialTable(sorted, metric, best));
  new Chart(part, { title: `Trials of ${run.name}`, x: "trial", y: metric }).draw([
    { name: "trials", colour: colour(0), dots: true, points: status("done") }, { name: "stopped early", colour: "var(--quiet)", dots: true, points: status("stopped") },
    { name: "best so far", colour: colour(1), steps: true, points: front }].filter((one) => one.points.length));
}
const heldOut = (held, metric) => held.best == null ? "The search has no results on held-out seeds."
  : `On held-out seeds: ${metric} ${digits(held.best)} with the best settings${held.defaults == null ? "" : `, ${digits(held.defaults)} with the defaults`}.`;
function trialTable(sorted, metric, best) {
  const rows = sorted.slice(0, TOP).map(([number, value, status, settings]) => make("tr", {}, make("th", { scope: "row" }, `trial ${number}${number === best ? ", recommended" : ""}`),
    make("td", { class: "n", "data-name": metric }, digits(value)), make("td", { "data-name": "Status" }, status), make("td", { "data-name": "Settings" }, settings)));
  const heads = ["Trial", metric, "Status", "Settings"].map((text, k) => make("th", { scope: "col", class: k === 1 && "n" }, text));
  return make("div", { class: "scroll" }, make("table", { class: "cards" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
}
document.querySelector("#all thead tr").append(make("th", { scope: "col" }, make("small", {}, "Choose")), ...COLUMNS.map(([title, value, number], k) =>
  make("th", { scope: "col", class: number && "n", "data-column": k }, value ? make("button", { type: "button", onclick: () => sort(k) }, title) : title)));
byId("sort").append(...COLUMNS.flatMap(([title, value], k) => value ? [make("option", { value: k }, title)] : []));
byId("experiment").append(...[...new Set(runs.map((run) => run.experiment).filter(Boolean))].sort().map((name) => make("option", {}, name)));
byId("health").append(...Object.keys(HEALTH).filter((name) => runs.some((run) => run.health === name)).map((name) => make("option", {}, name)));
runs.forEach(rowOf);
const counts = Object.keys(HEALTH).map((name) => [runs.filter((run) => run.health === name).length, name]).filter(([count]) => count);
byId("count").textContent = counts.map(([count, name]) => ` · ${count} ${name}`).join("");
byId("controls").hidden = byId("all").hidden = !runs.length;
byId("filter").oninput = byId("experiment").onchange = byId("health").onchange = show;
byId("sort").onchange = (event) => sort(+event.target.value);
byId("lines").onchange = () => { byId("lines").set = true; draw(); };
byId("clear").onclick = () => { runs.filter((run) => run.chosen).forEach((run) => mark(run, false)); draw(); byId("filter").focus(); };
const first = runs.find((run) => run.best?.curve.length);
if (first) mark(first, true);
show();
draw();
