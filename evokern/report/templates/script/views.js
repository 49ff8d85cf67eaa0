// The linked plots: convergence over trials and over time, parallel coordinates, time against a gene, roofline.
const timeAxis = () => ({ label: `${data.unit} per call`, log: true, ...scale });

function lanesOf(shown) {
  const lanes = [];
  if (shown.some(trial => trial.time && trial.time > scale.high)) lanes.push(`> ${digits(scale.high)}`);
  for (const mark of data.marks) if (mark[2] && !lanes.includes(mark[2]) && shown.some(trial => trial.lane === mark[2])) lanes.push(mark[2]);
  return lanes;
}
function height(chart, trial) {
  if (trial.lane) return chart.atLane(trial.lane);
  if (!trial.time) return null;
  return trial.time > scale.high ? chart.atLane(chart.lanes[0]) : chart.atY(trial.time);
}
function placed(chart, at) {
  return trials.map(trial => ({ trial, x: at(trial), y: height(chart, trial) })).filter(point => point.y !== null);
}
const jitter = number => (number * 0.61803398875) % 1 - 0.5;  // evenly spread, and identical at every redraw

// A plot with optional elements above it; `draw` of each subclass fills it.
class View {
  constructor(holder, height, ...above) {
    holder.replaceChildren(...above);
    this.holder = holder;
    this.chart = new Chart(holder, height);
    this.chart.owner = this;
  }
  pick() { this.chart.pick(); }
  follows(name) { return FILTERS.includes(name); }
  baseline() {
    if (data.baseline && data.baseline[1] <= scale.high && data.baseline[1] >= scale.low)
      this.chart.level(data.baseline[1], "base", `${baselineName()}, ${digits(data.baseline[1])} µs`);
  }
}

class Convergence extends View {
  constructor(holder, minutes) {
    super(holder, minutes ? 300 : 208);
    this.minutes = minutes;
  }
  draw() {
    if (!this.chart.room()) return;
    const chart = this.chart, over = this.minutes;
    const at = trial => over ? trial.seconds / 60 : trial.evaluated;
    const other = data.others.flatMap(one => one.points.map(point => point[over ? 1 : 0]));
    const most = trials.reduce((found, trial) => Math.max(found, at(trial)), other.reduce((a, b) => Math.max(a, b), over ? 0.1 : 2));
    const label = over ? "minutes of study" : "evaluated trials";
    chart.begin({ title: `Best time so far over ${label}, with every trial`, x: { label, low: 0, high: most }, y: timeAxis(), lanes: lanesOf(trials) });
    chart.marks(placed(chart, trial => chart.atX(at(trial))));
    // Improvements of the sampler's or the control's best, as steps to the right edge.
    const steps = (points, kind, label) => {
      let path = "";
      for (const [when, us] of points) {
        if (us > scale.high) continue;
        const x = chart.atX(when).toFixed(1), y = chart.atY(us).toFixed(1);
        path += path ? `H${x}V${y}` : `M${x} ${y}`;
      }
      chart.line(path && `${path}H${chart.width - chart.right}`, kind, `best so far, ${label}`);
    };
    for (const drawn of data.control ? [1, 0] : [0]) {
      let best = Infinity;
      const points = [];
      for (const trial of trials) {
        if (trial.control !== drawn || !trial.times || refuted(trial) || !trial.us || trial.us >= best) continue;
        best = trial.us;
        points.push([at(trial), best]);
      }
      steps(points, drawn ? "control1" : "own", drawn ? `${data.control} (control)` : data.sampler);
    }
    data.others.forEach((one, place) => steps(one.points.map(([counted, minutes, us]) => [over ? minutes : counted, us]), `control${place + 2}`, one.label));
    this.baseline();
    chart.end();
  }
}

class Against extends View {
  constructor(holder) {
    const doc = element("span", { class: "dim" });
    const choice = element("select", { id: "against-gene", onchange: () => change({ against: choice.value }, this) },
      ...data.genes.map(gene => element("option", { value: gene.name }, gene.name)));
    super(holder, 320, element("h3", {}, "Time against a gene"), element("p", {}, element("label", { for: "against-gene" }, "gene "), choice, " ", doc));
    this.choice = choice;
    this.doc = doc;
  }
  follows(name) { return name === "against" || super.follows(name); }
  draw() {
    if (!this.chart.room()) return;
    let gene = data.genes.findIndex(one => one.name === state.against);
    if (gene < 0) gene = data.leading.length ? data.leading[0] : 0;
    if (!data.genes.length) return;
    this.choice.value = data.genes[gene].name;
    this.doc.textContent = data.genes[gene].doc;
    const used = data.genes[gene].values.map((words, place) => [place, words]).filter(([place]) => trials.some(trial => trial.genes[gene] === place));
    const order = new Map(used.map(([place], index) => [place, index]));
    const chart = this.chart, cut = Math.max(3, Math.floor(chart.room() / Math.max(used.length, 1) / 7.5));
    const ticks = used.map(([, words], index) => [index, words.length > cut ? `${words.slice(0, cut - 1)}…` : words]);
    chart.begin({ title: `Time against ${data.genes[gene].name}`, x: { label: data.genes[gene].name, low: -0.5, high: used.length - 0.5, ticks }, y: timeAxis(), lanes: lanesOf(trials) });
    chart.marks(placed(chart, trial => chart.atX((order.get(trial.genes[gene]) ?? 0) + 0.7 * jitter(trial.number))));
    this.baseline();
    chart.end();
  }
}

const MOST_LINES = 1000;  // in parallel coordinates; more lines would merge into an area and be slow
class Parallel extends View {
  constructor(holder) {
    const note = element("p");
    super(holder, 330, element("h3", {}, "Parallel coordinates"), note);
    this.note = note;
    this.chart.nearest = event => this.nearest(event);
    this.chart.pick = () => this.pick();
  }
  draw() {
    if (!this.chart.room()) return;
    const chart = this.chart, genes = data.leading.slice(0, chart.room() < 560 ? 4 : 8);
    if (!genes.length) { this.note.textContent = "No gene has been tried with two values yet."; return; }
    chart.begin({ title: "Each trial as a line through its values of the most important genes", x: { label: chart.room() < 560 ? "most important genes, then time" : "genes, most important first; then the time", low: 0, high: genes.length, ticks: [] }, y: { label: "", low: 0, high: 1 } });
    const svg = chart.svg;
    svg.replaceChildren(svg.lastChild.previousSibling);
    chart.top = 24; chart.bottom = chart.height - 46;
    chart.left = 46; chart.right = 60;
    this.genes = genes;
    const used = genes.map(gene => [...new Set(trials.map(trial => trial.genes[gene]))].sort((a, b) => a - b));
    const spots = used.map(values => new Map(values.map((value, place) => [value, values.length > 1 ? chart.bottom - (chart.bottom - chart.top) * place / (values.length - 1) : (chart.top + chart.bottom) / 2])));
    const x = place => chart.left + (chart.width - chart.left - chart.right) * place / genes.length;
    const timed = trials.filter(trial => trial.time && passes(trial)).sort((a, b) => a.time - b.time);
    const failed = trials.filter(trial => !trial.time && passes(trial));
    const kept = [...even(timed, Math.min(200, timed.length), MOST_LINES - Math.min(200, failed.length)), ...even(failed, 0, 200)];
    this.note.textContent = kept.length < timed.length + failed.length
      ? `${kept.length.toLocaleString("en")} of ${several(timed.length + failed.length, "trial")}: the fastest, and an even selection of the others. Click to open the nearest trial.` : "Click to open the nearest trial.";
    const edge = { time: { low: scale.low, high: scale.high, log: true } };
    this.lines = kept.map(trial => {
      const y = genes.map((gene, place) => (spots[place].get(trial.genes[gene]) ?? chart.bottom) + 9 * jitter(trial.number));
      y.push(trial.time && trial.time <= scale.high ? chart.bottom - (chart.bottom - chart.top) * chart.share(edge.time, trial.time) : chart.top - 8 - 5 * jitter(trial.number));
      return { trial, y, x: chart.width, path: y.map((one, place) => `${place ? "L" : "M"}${x(place).toFixed(1)} ${one.toFixed(1)}`).join("") };
    });
    const top = Math.max(10, Math.ceil(timed.length / 10)), quick = new Set(timed.slice(0, top));
    const groups = [["none", line => !line.trial.time], ["rest", line => line.trial.time && !quick.has(line.trial)], ["quick", line => quick.has(line.trial)]];
    const words = { none: "without a time", rest: "other measured trials", quick: `the fastest ${several(top, "trial")}` };
    for (const [kind, belongs] of groups) {
      const mine = this.lines.filter(belongs);
      if (mine.length) { svg.append(shape("path", { class: `line parallel ${kind}`, d: mine.map(line => line.path).join("") })); chart.keys.push([`line parallel ${kind}`, "M0 8h18", words[kind]]); }
    }
    genes.forEach((gene, place) => {
      svg.append(shape("line", { class: "axis", x1: x(place), x2: x(place), y1: chart.top, y2: chart.bottom }));
      const name = data.genes[gene].name, cut = Math.max(5, Math.floor((x(1) - x(0)) / 7.6));
      svg.append(shape("text", { x: place ? x(place) : 2, y: chart.bottom + 16, "text-anchor": place ? "middle" : "start" }, name.length > cut ? `${name.slice(0, cut - 1)}…` : name));
      for (const [value, at] of spots[place]) svg.append(shape("text", { class: "note onplot", x: x(place) + 4, y: at - 6 }, String(data.genes[gene].values[value] ?? "?").replace(new RegExp(`^(.{${Math.max(3, cut - 3)}}).{2,}$`), "$1…")));
    });
    if (this.lines.some(line => line.trial === fastest)) chart.keys.push(["line parallel best", "M0 8h18", "the champion"]);
    const last = x(genes.length);
    svg.append(shape("line", { class: "axis", x1: last, x2: last, y1: chart.top, y2: chart.bottom }));
    svg.append(shape("text", { x: last, y: chart.bottom + 16, "text-anchor": "middle" }, data.unit));
    for (const value of ticksOf(scale.low, scale.high, true, 4)) svg.append(shape("text", { class: "note", x: last + 5, y: chart.bottom - (chart.bottom - chart.top) * chart.share(edge.time, value) + 4 }, round(value)));
    chart.points = this.lines.slice().sort((a, b) => (a.trial.time || Infinity) - (b.trial.time || Infinity) || a.trial.number - b.trial.number);
    this.x = x;
    chart.end();
  }
  pick() {
    const chart = this.chart;
    if (!chart.over) return;
    const found = [];
    for (const [kind, trial] of [["best", fastest], ["cursor", (chart.points[chart.cursor] || {}).trial], ["picked", byNumber.get(state.trial)]]) {
      const line = trial && this.lines.find(one => one.trial === trial);
      if (line) found.push(shape("path", { class: `line parallel ${kind}`, d: line.path }));
    }
    chart.over.replaceChildren(...found);
  }
  nearest(event) {
    const frame = this.chart.svg.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
    const step = this.x(1) - this.x(0), place = Math.min(Math.max(Math.floor((x - this.chart.left) / step), 0), this.genes.length - 1);
    const along = (x - this.x(place)) / step;
    let found = null, least = 12;
    for (const line of this.lines) {
      const distance = Math.abs(line.y[place] + (line.y[place + 1] - line.y[place]) * along - y);
      if (distance < least) { least = distance; found = line; }
    }
    return found;
  }
}
// The first items of a list, and an even selection of the rest up to a maximum.
function even(list, first, most) {
  if (list.length <= most) return list;
  const rest = list.slice(first), room = most - first;
  return [...list.slice(0, first), ...Array.from({ length: room }, (_, place) => rest[Math.floor(place * rest.length / room)])];
}

class Roofline extends View {
  constructor(holder) { super(holder, 330); }
  draw() {
    if (!this.chart.room()) return;
    const roof = data.roofline, chart = this.chart;
    const rate = trial => roof.flops / trial.us / 1e6;
    const shown = trials.filter(trial => trial.measured);
    const low = Math.min(roof.intensity, roof.peak / roof.l2) / 4, high = Math.max(roof.intensity, roof.peak / roof.dram) * 4;
    const least = shown.reduce((found, trial) => Math.min(found, rate(trial)), roof.dram * low / 1e12) / 2;
    chart.begin({ title: "Roofline", x: { label: "operations per byte (FLOP/B)", low, high, log: true },
      y: { label: `${data.predicted ? "predicted " : ""}TFLOP/s`, low: least, high: roof.peak * 2 / 1e12, log: true } });
    const bent = (bandwidth, peak) => `M${chart.atX(low)} ${chart.atY(bandwidth * low / 1e12)}L${chart.atX(peak / bandwidth)} ${chart.atY(peak / 1e12)}H${chart.width - chart.right}`;
    chart.line(bent(roof.dram, roof.peak), "roof", `DRAM ${round(roof.dram / 1e12)} TB/s and tensor cores ${round(roof.peak / 1e12)} TFLOP/s, data sheet`);
    chart.line(bent(roof.l2, roof.peak), "cache", `L2 ${round(roof.l2 / 1e12)} TB/s, data sheet`);
    if (roof.measured_peak) chart.line(bent(roof.measured_dram, roof.measured_peak), "peak", `measured: copy ${round(roof.measured_dram / 1e12)} TB/s, matrix ${round(roof.measured_peak / 1e12)} TFLOP/s`);
    chart.level(roof.plain / 1e12, "base", `fp32 without tensor cores, ${round(roof.plain / 1e12)} TFLOP/s`);
    chart.marks(shown.map(trial => ({ trial, x: chart.atX(roof.intensity) + 16 * jitter(trial.number), y: chart.atY(rate(trial)) })));
    chart.end();
  }
}
