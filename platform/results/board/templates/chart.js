// Line charts with axes, a legend that switches lines off, lanes of events, and a cursor for mouse and arrow keys.
const DRAWN = new Set(["svg", "g", "path", "line", "text", "circle", "rect"]);
function make(name, attributes = {}, ...inside) {
  const one = DRAWN.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") one[key] = value;
    else if (value != null && value !== false) one.setAttribute(key, value === true ? "" : value);
  }
  one.append(...inside.filter((part) => part != null));
  return one;
}
const digits = (value, most = 3) => value == null ? "–"
  : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(most));
function ticksOf(low, high, count) {  // steps of 1, 2 or 5 that cover the range
  const rough = (high - low) / Math.max(1, count) || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => +((first + k) * step).toPrecision(12));
}
class Chart {
  constructor(box, { title, x, y, height = 260, least = null, most = null, empty = "There is nothing to draw yet." }) {
    Object.assign(this, { box, title, x, y, height, least, most, empty, series: [], events: [], off: new Set(), at: null });
    this.legend = make("div", { class: "keys", role: "group", "aria-label": `Legend: ${title}` });
    this.drawing = make("svg", { class: "chart", role: "img", tabindex: 0 });
    this.reading = make("p", { class: "reading", role: "status" });
    box.replaceChildren(this.legend, this.drawing, this.reading);
    this.drawing.onkeydown = (event) => this.move(event);
    this.drawing.onpointermove = (event) => this.point(event.clientX);
    this.drawing.onpointerleave = () => this.read(null);
    new ResizeObserver(() => box.clientWidth !== this.width && this.render()).observe(box);
  }
  draw(series, events = []) {  // series: name, colour, points, dash, dots; events: name, colour, marks of x, end, text
    this.series = series;
    this.events = events.filter((one) => one.marks.length);
    const names = JSON.stringify([...this.series, ...this.events].map((one) => [one.name, one.colour, one.dash]));
    if (names !== this.names) {
      this.names = names;
      this.legend.replaceChildren(...this.series.map((one) => this.key(one, "line")), ...this.events.map((one) => this.key(one, "mark")));
    }
    this.render();
  }
  key(one, kind) {
    const toggle = () => {
      if (!this.off.delete(one.name)) this.off.add(one.name);
      button.setAttribute("aria-pressed", String(!this.off.has(one.name)));
      this.render();
    };
    const sample = make("svg", { viewBox: "0 0 22 10", "aria-hidden": "true", style: `color: ${one.colour}` }, kind === "mark" || one.dots
      ? make("circle", { cx: 11, cy: 5, r: 4 }) : make("line", { x1: 0, x2: 22, y1: 5, y2: 5, "stroke-dasharray": one.dash }));
    const button = make("button", { type: "button", "aria-pressed": String(!this.off.has(one.name)), onclick: toggle }, sample, one.name);
    return button;
  }
  render() {
    this.width = this.box.clientWidth;
    const shown = this.series.filter((one) => !this.off.has(one.name)), lanes = this.events.filter((one) => !this.off.has(one.name));
    const points = shown.flatMap((one) => one.points.filter(([, value]) => value != null));
    const marks = lanes.flatMap((one) => one.marks);
    this.shown = shown;
    this.drawing.setAttribute("aria-label", this.summary(shown, lanes));
    if (!this.width) return;
    const narrow = this.width < 480, left = 46, right = this.width - 10, top = 24, floor = this.height - 42, bottom = floor + 16 * lanes.length;
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${bottom + 42}`);
    if (!points.length && !marks.length) {
      this.drawing.replaceChildren(make("text", { x: left, y: top + 30, class: "tick" }, this.empty));
      return;
    }
    const values = points.map((point) => point[1]), places = [...points.map((point) => point[0]), ...marks.flatMap((one) => [one.x, one.end ?? one.x])];
    const rows = ticksOf(this.least ?? Math.min(...values, 1e9), this.most ?? Math.max(...values, -1e9), 5);
    const [from, to] = [Math.min(...places), Math.max(...places)], columns = ticksOf(from, to > from ? to : from + 1, narrow ? 4 : 8);
    const begin = columns.length > 2 && columns[0] < from ? from : columns[0], end = to > from ? to : from + 1;
    const scale = (value, low, high, start, stop) => start + (value - low) / (high - low || 1) * (stop - start);
    this.across = (value) => scale(value, begin, end, left, right);
    this.up = (value) => scale(value, rows[0], rows.at(-1), floor, top);
    this.drawing.replaceChildren(
      ...rows.flatMap((value) => [make("line", { class: "rule", x1: left, x2: right, y1: this.up(value), y2: this.up(value) }),
        make("text", { class: "tick", x: left - 6, y: this.up(value) + 4, "text-anchor": "end" }, digits(value))]),
      ...columns.filter((value) => value >= begin && value <= end).map((value) =>
        make("text", { class: "tick", x: this.across(value), y: bottom + 18, "text-anchor": "middle" }, digits(value, 6))),
      make("text", { class: "tick", x: 2, y: 12 }, this.y),
      make("text", { class: "tick", x: right, y: bottom + 36, "text-anchor": "end" }, this.x),
      ...lanes.flatMap((one, k) => this.lane(one, floor + 16 * k + 10)), ...shown.map((one) => this.line(one)),
      this.cursor = make("g", { class: "cursor" }));
    this.stops = [...new Set(shown.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
    this.bounds = [top, bottom];
    if (this.at != null) this.read(this.at);
  }
  lane(one, y) {
    return one.marks.map((mark) => make(mark.end == null ? "circle" : "line", mark.end == null ? { cx: this.across(mark.x), cy: y, r: 3.5 }
      : { x1: this.across(mark.x), x2: this.across(mark.end), y1: y, y2: y, "stroke-width": 7 }))
      .map((drawn, k) => (drawn.setAttribute("style", `color: ${one.colour}`), drawn.setAttribute("class", "mark"),
        drawn.append(titleOf(`${one.name}, ${digits(one.marks[k].x)}: ${one.marks[k].text ?? ""}`)), drawn));
  }
  line(one) {
    const known = one.points.filter(([, value]) => value != null), at = ([x, y]) => `${this.across(x).toFixed(1)} ${this.up(y).toFixed(1)}`;
    if (one.dots || known.length === 1) {
      return make("g", { style: `color: ${one.colour}` }, ...known.map(([x, y]) => make("circle", { class: "mark", cx: this.across(x), cy: this.up(y), r: 3.5 })));
    }
    let pen = "M";  // a missing value interrupts the line
    const path = one.points.map((point) => {
      if (point[1] == null) return pen = "M", "";
      const step = pen === "L" && one.steps ? `H${this.across(point[0]).toFixed(1)}` : "";
      const drawn = step + pen + at(point);
      pen = "L";
      return drawn;
    }).join("");
    return make("path", { class: "curve", d: path || "M0 0", "stroke-dasharray": one.dash, style: `color: ${one.colour}` });
  }
  summary(shown, lanes) {
    const last = shown.map((one) => [one.name, one.points.findLast(([, value]) => value != null)]).filter(([, point]) => point);
    const parts = [...last.map(([name, point]) => `${name} ${digits(point[1])}`), ...lanes.map((one) => `${one.name}: ${one.marks.length}`)];
    return `${this.title}. ${parts.length ? `Newest values: ${parts.join(", ")}. Arrow keys read the values.` : this.empty}`;
  }
  point(clientX) {
    if (!this.stops?.length) return;
    const here = clientX - this.drawing.getBoundingClientRect().left;
    this.read(this.stops.reduce((best, one) => Math.abs(this.across(one) - here) < Math.abs(this.across(best) - here) ? one : best));
  }
  move(event) {
    const last = (this.stops?.length ?? 0) - 1, now = this.at == null ? -1 : this.stops.indexOf(this.at);
    const next = { ArrowRight: Math.min(last, now + 1), ArrowLeft: Math.max(0, now < 0 ? last : now - 1), Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.read(null);
    if (next == null || last < 0) return;
    event.preventDefault();
    this.read(this.stops[next]);
  }
  read(at) {  // the values at a place: the newest of each line there or before
    this.at = at;
    this.cursor?.replaceChildren();
    this.reading.textContent = "";
    if (at == null || !this.cursor) return;
    const found = this.shown.map((one) => [one, one.points.findLast(([x, value]) => x <= at && value != null)]).filter(([, point]) => point);
    const x = this.across(at), [top, bottom] = this.bounds;
    this.cursor.append(make("line", { class: "hair", x1: x, x2: x, y1: top, y2: bottom }), ...found.map(([one, point]) =>
      make("circle", { class: "mark", cx: this.across(point[0]), cy: this.up(point[1]), r: 4.5, style: `color: ${one.colour}` })));
    this.reading.textContent = `${digits(at, 4)} · ${found.map(([one, point]) => `${one.name} ${digits(point[1])}`).join(" · ")}`;
  }
}
function titleOf(text) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", "title");
  one.textContent = text;
  return one;
}
