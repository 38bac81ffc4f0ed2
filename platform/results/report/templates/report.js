// Values under the pointer, legends that switch systems on and off, and the playhead of the clip.
// The page is complete without it.
"use strict";
const marks = [...document.querySelectorAll("[data-series], [data-part]")];
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;

const pairs = (text) => text.split(" ").map((pair) => pair.split(":").map(Number));
function convert(table, from, to, at) {  // between pixels (0) and values (1) of an axis, by interpolation
  const place = table.findIndex((_, k) => k && (table[k][from] - at) * (table[k - 1][from] - at) <= 0);
  if (place < 1) return NaN;
  const [low, high] = [table[place - 1], table[place]];
  return low[to] + ((at - low[from]) / (high[from] - low[from] || 1)) * (high[to] - low[to]);
}
const format = (value) => (Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3))).toString();

function points(mark) {  // in the units of its picture
  const dots = [...mark.querySelectorAll("use")].map((dot) => [Number(dot.getAttribute("x")), Number(dot.getAttribute("y"))]);
  const path = mark.querySelector("path")?.getAttribute("d") ?? "";
  return dots.length ? dots : [...path.matchAll(/[ML] (\S+) (\S+)/g)].map((found) => [Number(found[1]), Number(found[2])]);
}
function lines(svg) {  // what is switched on and has values
  svg.series ??= [...svg.querySelectorAll("[data-series]")].map((mark) => ({ mark, name: mark.dataset.series, points: points(mark) }));
  return svg.series.filter((one) => one.points.length && !one.mark.classList.contains("off"));
}
function readings(svg, x) {  // of every line that has a point at this place, the highest first
  const near = (one) => one.points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
  const found = lines(svg).map((one) => ({ name: one.name, at: near(one) })).filter((one) => Math.abs(one.at[0] - x) < 2);
  return found.sort((one, other) => one.at[1] - other.at[1]);
}
function rule(svg, x) {  // a vertical line at this place
  if (!svg.rule) svg.insertAdjacentHTML("beforeend", '<line class="rule" y1="0" y2="100%"/>');
  svg.rule = svg.lastElementChild;
  svg.rule.setAttribute("transform", `translate(${x})`);
  svg.rule.style.display = Number.isFinite(x) ? "" : "none";
}

for (const svg of document.querySelectorAll("svg.plot")) {
  const leave = () => { tip.hidden = true; if (svg.rule && !svg.closest(".clip")) rule(svg, NaN); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = ([x, y]) => Math.hypot(x - at.x, y - at.y);
    const nearest = lines(svg).flatMap((one) => one.points).reduce((best, point) => (far(point) < far(best) ? point : best), [1e9, 1e9]);
    if (far(nearest) > 60) return leave();
    const [x, y] = [pairs(svg.dataset.x), pairs(svg.dataset.y)];
    const told = readings(svg, nearest[0]).map((one) => `${one.name}  ${format(convert(y, 0, 1, one.at[1]))}`);
    tip.textContent = [`${svg.dataset.xtitle}: ${format(convert(x, 0, 1, nearest[0]))}`, svg.dataset.ytitle, ...told].join("\n");
    if (!svg.closest(".clip")) rule(svg, nearest[0]);
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
  });
}

const items = [...document.querySelectorAll(".legend [data-system]")];
const belongs = (name) => (mark) => (mark.dataset.series ?? mark.dataset.part) === name;
for (const item of items.filter((each) => marks.some(belongs(each.dataset.system)))) {
  const name = item.dataset.system;
  const flip = () => {
    const off = item.getAttribute("aria-pressed") === "true";
    items.filter((each) => each.dataset.system === name && each.role).forEach((each) => each.setAttribute("aria-pressed", String(!off)));
    marks.filter(belongs(name)).forEach((mark) => mark.classList.toggle("off", off));
  };
  Object.assign(item, { role: "button", tabIndex: 0, title: `Show or hide ${name}`, onclick: flip });
  item.setAttribute("aria-pressed", "true");
  item.onkeydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); flip(); } };
}

for (const clip of document.querySelectorAll(".clip")) {
  const [video, svg, times] = [clip.querySelector("video"), clip.querySelector("svg.plot"), JSON.parse(clip.dataset.times)];
  const step = () => {
    const time = times[Math.min(times.length - 1, Math.floor((video.currentTime / video.duration) * times.length) || 0)];
    clip.querySelector("time").textContent = `${format(time)} s`;
    if (!svg) return;
    const x = convert(pairs(svg.dataset.x), 1, 0, time);
    rule(svg, x);
    for (const one of readings(svg, x)) {
      const label = [...clip.querySelectorAll("[data-tile]")].find((each) => each.dataset.tile === one.name);
      if (label) label.textContent = `${one.name} ${convert(pairs(svg.dataset.y), 0, 1, one.at[1]).toFixed(2)}`;
    }
  };
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) video.pause();
  video.addEventListener("timeupdate", step);
  step();
}
