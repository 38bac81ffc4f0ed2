// Values under the pointer, legends that switch systems on and off, and the playhead of the clip.
// The page is complete without it.
"use strict";
const marks = [...document.querySelectorAll("[data-series], [data-part]")];
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;
const NEAR = 30;  // pixels from a dot

const pairs = (text) => text.split(" ").map((pair) => pair.split(":").map(Number));
function convert(table, from, to, at) {  // between pixels (0) and values (1) of an axis, by interpolation
  const place = table.findIndex((_, k) => k && (table[k][from] - at) * (table[k - 1][from] - at) <= 0);
  if (place < 1) return NaN;
  const [low, high] = [table[place - 1], table[place]];
  return low[to] + ((at - low[from]) / (high[from] - low[from] || 1)) * (high[to] - low[to]);
}
const format = (value) => (Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3))).toString();

function lines(svg) {  // the marks that are switched on, with their points in pixels
  svg.series ??= [...svg.querySelectorAll("[data-series]")].map((mark) => {
    const dots = [...mark.querySelectorAll("use")].map((dot) => [Number(dot.getAttribute("x")), Number(dot.getAttribute("y"))]);
    const path = mark.querySelector("path")?.getAttribute("d") ?? "";
    const line = [...path.matchAll(/[ML] (\S+) (\S+)/g)].map((found) => [Number(found[1]), Number(found[2])]);
    return { mark, name: mark.dataset.series, dotted: dots.length > 0, points: dots.length ? dots : line };
  });
  return svg.series.filter((one) => !one.mark.classList.contains("off"));
}
function readings(svg, x) {  // heights of lines at this place and of dots there, the highest first
  const dot = (points) => points.find((point) => Math.abs(point[0] - x) < 1)?.[1];
  const found = lines(svg).map((one) => ({ name: one.name, y: one.dotted ? dot(one.points) : convert(one.points, 0, 1, x) }));
  return found.filter((one) => Number.isFinite(one.y)).sort((one, other) => one.y - other.y);
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
    const dots = lines(svg).filter((one) => one.dotted).flatMap((one) => one.points);
    const far = ([x, y]) => Math.hypot(x - at.x, y - at.y);
    const nearest = dots.reduce((best, point) => (far(point) < far(best) ? point : best), [at.x, NEAR + at.y]);
    const place = far(nearest) < NEAR ? nearest[0] : at.x;
    const [x, y, found] = [pairs(svg.dataset.x), pairs(svg.dataset.y), readings(svg, place)];
    if (!found.length) return leave();
    const values = found.map((one) => `${one.name}  ${format(convert(y, 0, 1, one.y))}`);
    tip.textContent = [`${svg.dataset.xtitle}: ${format(convert(x, 0, 1, place))}`, svg.dataset.ytitle, ...values].join("\n");
    if (!svg.closest(".clip")) rule(svg, place);
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
      if (label) label.textContent = `${one.name} ${convert(pairs(svg.dataset.y), 0, 1, one.y).toFixed(2)}`;
    }
  };
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) video.pause();
  video.addEventListener("timeupdate", step);
  step();
}
