const byId = (id) => document.getElementById(id), KINDS = ["frame", "prediction", "truth"];
const STATES = { failed: "bad", silent: "bad", waiting: "warn", opening: "warn", training: "good", running: "good", finished: "" };
const scores = new Chart(byId("scores"), { title: "Score and events over time", x: "time of the device, s", y: "score", height: 280, least: 0, most: 1, empty: "There are no uploads and reports yet." });
const rates = new Chart(byId("rates"), { title: "Frame rate over time", x: "time of the device, s", y: "frames per second", height: 200, least: 0, empty: "The device has sent no report yet." });
const delays = new Chart(byId("delays"), { title: "Prediction time over time", x: "time of the device, s", y: "milliseconds, median", height: 200, least: 0, empty: "The device has sent no report yet." });
let chosen = null, seen = "";
async function ask(path, options) {
  const reply = await fetch(location.origin + path, options);
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).detail || reply.status);
  return reply;
}
const json = async (path, options) => (await ask(path, options)).json();
const number = (value, places, unit = "") => value == null ? "–" : value.toFixed(places) + unit;
const kbps = (bytes, one) => one.time_s > 0 ? bytes * 8e-3 / one.time_s : null;
const scoreOf = (one) => one.device?.score ?? one.score;
function age(seconds) {
  const [unit, size] = seconds >= 172800 ? ["d", 86400] : seconds >= 7200 ? ["h", 3600] : seconds >= 120 ? ["min", 60] : ["s", 1];
  return `${Math.floor(seconds / size)} ${unit}`;
}
function tiles(list, facts) {
  list.replaceChildren(...Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
}
function fleet(sessions) {
  const all = Object.values(sessions), active = all.filter((one) => !["finished", "failed"].includes(one.state));
  const sum = (of) => active.reduce((whole, one) => whole + (of(one) ?? 0), 0), scored = active.map(scoreOf).filter((value) => value != null);
  byId("none").hidden = all.length > 0;
  byId("fleet").hidden = byId("table").hidden = !all.length;
  tiles(byId("fleet"), {
    "Sessions": all.length, "Active": active.length, "Silent or failed": all.filter((one) => ["silent", "failed"].includes(one.state)).length,
    "Frames/s": number(sum((one) => one.device?.fps), 1), "Mean score": number(scored.length ? scored.reduce((a, b) => a + b) / scored.length : null, 3),
    "Up, kbit/s": number(sum((one) => kbps(one.up_bytes, one)), 1), "Down, kbit/s": number(sum((one) => kbps(one.down_bytes, one)), 1),
    "Waiting uploads": sum((one) => one.waiting),
  });
}
function listed(sessions) {
  const names = Object.keys(sessions), body = document.querySelector("#sessions tbody");
  if (!names.includes(chosen)) { chosen = names.at(-1) ?? null; seen = ""; }
  if ([...body.children].map((row) => row.dataset.name).join() !== names.join()) {
    body.replaceChildren(...names.map((name) => make("tr", { "data-name": name },
      make("th", { scope: "row" }, make("button", { type: "button", onclick: () => { chosen = name; seen = ""; refresh(); } })),
      ...["State", "Method and stream", "Age", "Frames/s", "Prediction, ms", "Score", "Version", "Up, kbit/s"].map((title, k) =>
        make("td", { "data-name": title, class: k > 1 && "n" })))));
  }
  for (const row of body.children) {
    const one = sessions[row.dataset.name], [head, state, ...cells] = row.children;
    row.setAttribute("aria-current", String(row.dataset.name === chosen));
    const title = `${one.name} · ${row.dataset.name.slice(0, 4)}`;
    if (head.firstChild.textContent !== title) head.firstChild.textContent = title;
    state.replaceChildren(make("span", { class: `state ${STATES[one.state]}` }, one.state));
    [`${one.system} on ${one.workload}`, age(one.age_s), number(one.device?.fps, 1), number(one.device?.latency_ms, 0), number(scoreOf(one), 3),
      one.version, number(kbps(one.up_bytes, one), 2)].forEach((text, k) => { cells[k].textContent = text; });
  }
}
function told(one) {
  byId("title").textContent = `${one.name}: ${one.system} on ${one.workload}`;
  tiles(byId("facts"), {
    "State": one.fault ? `${one.state}: ${one.fault}` : one.state, "Device time": `${number(one.time_s, 0)} of ${number(one.duration_s, 0)} s`,
    "Frames/s": `${number(one.device?.fps, 1)} of ${one.fps}`, "Prediction time": number(one.device?.latency_ms, 0, " ms"), "Score": number(scoreOf(one), 3),
    "Network": `${one.network}, ${one.device?.network ? `${one.device.network}, ` : ""}version ${one.version}`, "Uploads": `${one.uploads}, ${one.waiting} waiting`, "Sampling": number(one.plan.rate_fps, 2, " fps"),
    "Upload interval": number(one.plan.interval_s, 1, " s"), "Up": `${number(one.up_bytes / 1000, 1)} kB, ${number(kbps(one.up_bytes, one), 2)} kbit/s`,
    "Down": `${number(one.down_bytes / 1000, 1)} kB, ${number(kbps(one.down_bytes, one), 2)} kbit/s`,
  });
}
function drawn(past) {
  const gaps = new Set(past.cuts.map(([, end]) => end)), marks = (rows, text) => rows.map(([x, value]) => ({ x, text: text(value) }));
  const of = (place) => past.reports.flatMap((one) => [...(gaps.has(one[0]) ? [[one[0], null]] : []), [one[0], one[place]]]);
  scores.draw([
    { name: "device, on its frames", colour: "var(--s0)", points: of(3) },
    { name: "network, on the newest upload", colour: "var(--s1)", dash: "6 3", points: past.scores },
  ].filter((one) => one.points.some(([, value]) => value != null)), [
    { name: "upload", colour: "var(--s2)", marks: marks(past.uploads, (bytes) => `${bytes} B`) },
    { name: "update", colour: "var(--s3)", marks: marks(past.updates, (bytes) => `${bytes} B`) },
    { name: "reset to all weights", colour: "var(--s4)", marks: past.resyncs.map((x) => ({ x })) },
    { name: "switch of network", colour: "var(--s5)", marks: marks(past.switches, (name) => name) },
    { name: "link cut", colour: "var(--bad)", marks: past.cuts.map(([x, end]) => ({ x, end, text: `until ${digits(end)}` })) },
  ]);
  rates.draw(past.reports.length ? [{ name: "frames per second", colour: "var(--s0)", points: of(1) }] : []);
  delays.draw(past.reports.length ? [{ name: "prediction time", colour: "var(--s0)", points: of(2) }] : []);
}
async function pictures(path, past) {
  byId("classes").hidden = !past.images.includes("prediction");
  byId("classes").replaceChildren(...past.classes.map(([name, colour]) => make("li", {}, make("i", { style: `background: ${colour}` }), name)));
  for (const kind of KINDS) {
    const image = byId(kind);
    image.parentElement.hidden = !past.images.includes(kind);
    if (image.parentElement.hidden) continue;
    URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(await (await ask(`${path}/images/${kind}`)).blob());
  }
}
async function refresh() {
  try {
    const sessions = await json("/sessions");
    listed(sessions);
    fleet(sessions);
    byId("one").hidden = chosen === null;
    if (chosen !== null) {
      const one = sessions[chosen], path = `/sessions/${chosen}`, state = [one.uploads, one.results, one.device?.time_s].join();
      told(one);
      if (state !== seen) {
        seen = state;
        const past = await json(`${path}/timeline`);
        drawn(past);
        await pictures(path, past);
      }
    }
    byId("fault").textContent = "";
  } catch (error) { byId("fault").textContent = `The server does not answer: ${error.message}`; }
}
const demo = (method) => async () => {
  const body = method === "POST" ? { method, headers: { "Content-Type": "application/json" }, body: '{"seconds": 300}' } : { method };
  try { await ask("/demo", body); } catch (error) { byId("fault").textContent = error.message; }
  refresh();
};
byId("start").onclick = demo("POST");
byId("stop").onclick = demo("DELETE");
(async function tick() { await refresh(); setTimeout(tick, 1000); })();
