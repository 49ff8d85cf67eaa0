// A plot of trials with two axes and lanes above them, as wide as the page allows.
const LANE = 15;

function ticksOf(low, high, log, about) {
  if (log && high / low >= 8) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of high / low > 2e3 ? [1] : high / low >= 20 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) found.push(step * Math.pow(10, power));
    return found.filter(value => value >= low && value <= high);
  }
  const raw = (high - low) / about || 1, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(one => one * power).find(one => one >= raw * 0.99);
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= high * (1 + 1e-9); place++) found.push(Number((place * step).toPrecision(12)));
  return found;
}

class Chart {
  // holder: parent element of the plot.
  constructor(holder, height) {
    this.height = height;
    this.points = [];
    this.cursor = -1;
    this.box = element("div", { class: "plot", tabindex: "0", role: "group", onkeydown: event => this.key(event),
      onclick: event => this.click(event), onpointermove: event => this.hover(event), onpointerleave: () => this.tip(null) });
    this.told = element("p", { class: "tip", "aria-live": "polite" });
    this.caption = element("figcaption");
    holder.append(element("figure", {}, this.box, this.told, this.caption));
    this.width = 0;
    // A collapsed plot is drawn when it is expanded. After a resize, redraw with a delay so that the click is handled first.
    this.watcher = new ResizeObserver(() => {
      if (this.room() === this.width || !this.room()) return;
      clearTimeout(this.waiting);
      if (this.width) this.waiting = setTimeout(() => draw([this.owner]), 120); else this.owner.draw();
    });
    this.watcher.observe(this.box);
  }
  room() { return Math.floor(this.box.clientWidth); }
  begin({ title, x, y, lanes = [] }) {
    this.width = this.room();
    this.left = 70; this.right = 22; this.bottom = this.height - 40;
    this.top = 10 + LANE * lanes.length;
    this.x = x; this.y = y; this.lanes = lanes;
    this.points = []; this.keys = [];
    const svg = this.svg = shape("svg", { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height, role: "img", "aria-label": title });
    this.box.setAttribute("aria-label", `${title}. Use the arrow keys to move between trials and Enter to open one.`);
    const edge = this.width - this.right;
    svg.append(shape("rect", { class: "frame", x: this.left, y: 10, width: edge - this.left, height: this.bottom - 10 }));
    lanes.forEach((name, place) => {
      const middle = this.top - LANE * (place + 0.5);
      svg.append(shape("line", { class: "grid", x1: this.left, x2: edge, y1: middle + LANE / 2, y2: middle + LANE / 2 }));
      svg.append(shape("text", { class: "note lane", x: this.left - 6, y: middle + 4, "text-anchor": "end" }, name));
    });
    const across = x.ticks || ticksOf(x.low, x.high, x.log, Math.max(2, Math.min(8, this.width / 110))).map(value => [value, round(value)]);
    for (const [value, words] of across) {
      const at = this.atX(value);
      if (!x.ticks) svg.append(shape("line", { class: "grid", x1: at, x2: at, y1: this.top, y2: this.bottom }));
      const late = !x.ticks && at + 4 * words.length > this.width;  // avoid overflow at the right edge
      svg.append(shape("text", { x: late ? this.width - 2 : at, y: this.bottom + 15, "text-anchor": late ? "end" : "middle" }, words));
    }
    for (const value of ticksOf(y.low, y.high, y.log, 7)) {
      const at = this.atY(value);
      svg.append(shape("line", { class: "grid", x1: this.left, x2: edge, y1: at, y2: at }));
      if (!lanes.length || at > this.top + 8)  // avoid the name of the lane above
        svg.append(shape("text", { x: this.left - 6, y: at + 4, "text-anchor": "end" }, round(value)));
    }
    svg.append(shape("text", { x: (this.left + edge) / 2, y: this.height - 6, "text-anchor": "middle" }, x.label));
    svg.append(shape("text", { transform: `translate(13 ${(this.top + this.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label));
  }
  share(axis, value) {
    const share = axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low || 1);
    return Math.min(Math.max(share, 0), 1);
  }
  atX(value) { return this.left + this.share(this.x, value) * (this.width - this.left - this.right); }
  atY(value) { return this.bottom - this.share(this.y, value) * (this.bottom - this.top); }
  atLane(name) { return this.top - LANE * (this.lanes.indexOf(name) + 0.5); }
  // Draw trials as marks: one path per kind, and a faint path for trials hidden by a filter.
  marks(placed) {
    const paths = data.marks.map(() => ["", "", 0]);
    for (const point of placed) {
      const kind = paths[point.trial.kind], shown = passes(point.trial);
      kind[shown ? 0 : 1] += `M${point.x.toFixed(1)} ${point.y.toFixed(1)}${data.marks[point.trial.kind][3]}`;
      kind[2] += shown;
      if (shown) this.points.push(point);
    }
    this.points.sort((a, b) => a.x - b.x || a.y - b.y);
    for (let kind = paths.length - 1; kind >= 0; kind--) {
      const [shown, hidden, count] = paths[kind], [name, label, , path] = data.marks[kind];
      if (hidden) this.svg.append(shape("path", { class: `mark ${name} faint`, d: hidden }));
      if (shown) this.svg.append(shape("path", { class: `mark ${name}`, d: shown }));
      if (shown) this.keys.unshift([`mark ${name}`, `M9 8${path}`, `${label}: ${count.toLocaleString("en")}`]);
    }
  }
  line(places, kind, words) {
    if (places) this.svg.append(shape("path", { class: `line ${kind}`, d: places }));
    if (places && words) this.keys.push([`line ${kind}`, "M0 8h18", words]);
  }
  level(value, kind, words) {
    const at = this.atY(value), edge = this.width - this.right;
    this.line(`M${this.left} ${at}H${edge}`, kind);
    this.svg.append(shape("text", { class: "note", x: edge - 4, y: at > this.top + 16 ? at - 5 : at + 14, "text-anchor": "end" }, words));
  }
  end() {
    // The selection has its own layer, so that a new ring does not repaint thousands of marks.
    this.over = shape("svg", { class: "over", viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height, "aria-hidden": "true" });
    this.box.replaceChildren(this.svg, this.over);
    this.caption.replaceChildren(...this.keys.map(([kind, path, words]) => {
      const key = shape("svg", { class: "mark-key", viewBox: "0 0 18 16", "aria-hidden": "true" });
      key.append(shape("path", { class: kind, d: path }));
      return element("span", { class: "key" }, key, words);
    }));
    this.cursor = -1;
    this.pick();
  }
  pick() {
    if (!this.over) return;
    const found = [];
    const best = fastest && this.points.find(point => point.trial === fastest);
    if (best) found.push(shape("path", { class: "mark best", d: `M${best.x} ${best.y}m-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0` }),
      shape("text", { class: "note best", x: Math.min(Math.max(best.x, this.left + 30), this.width - this.right - 30), y: best.y + 22 > this.bottom ? best.y - 12 : best.y + 21, "text-anchor": "middle" }, "best"));
    const chosen = state.trial !== null && this.points.find(point => point.trial.number === state.trial);
    if (chosen) found.push(shape("path", { class: "mark picked", d: `M${chosen.x} ${chosen.y}m-9 0a9 9 0 1 0 18 0a9 9 0 1 0-18 0` }));
    const at = this.points[this.cursor];
    if (at) found.push(shape("path", { class: "mark cursor", d: `M${at.x} ${at.y}m-6-6h12v12h-12z` }));
    this.over.replaceChildren(...found);
  }
  nearest(event) {
    const frame = this.svg.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
    let found = null, least = 15 * 15;
    for (const point of this.points) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < least) { least = distance; found = point; }
    }
    return found;
  }
  tip(point) { this.told.textContent = point ? spoken(point.trial) : ""; }
  hover(event) { const point = this.nearest(event); this.tip(point); this.box.classList.toggle("over", Boolean(point)); }
  click(event) { const point = this.nearest(event); if (point) select(point.trial.number, this.box); }
  key(event) {
    if (!this.points.length) return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    const last = this.points.length - 1;
    if (step !== undefined) this.cursor = this.cursor < 0 ? Math.max(0, this.points.findIndex(point => point.trial === fastest)) : Math.min(Math.max(this.cursor + step, 0), last);
    else if (event.key === "Home") this.cursor = 0;
    else if (event.key === "End") this.cursor = last;
    else if ((event.key === "Enter" || event.key === " ") && this.cursor >= 0) select(this.points[this.cursor].trial.number, this.box);
    else return;
    event.preventDefault();
    this.tip(this.points[this.cursor]);
    this.pick();
  }
}
