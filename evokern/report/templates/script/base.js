// Shared helpers: elements, number formats, and the page's data.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}
function shape(tag, attributes = {}, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
// Three significant digits with trailing zeros, so that columns align.
function digits(value, count = 3) {
  if (!value) return "0";
  const behind = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(behind, 6), maximumFractionDigits: Math.min(behind, 6) });
}
const round = value => Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });
// Both ends of an interval with enough digits to distinguish them; empty if they are equal.
function apart(low, high) {
  for (const count of [3, 4, 5, 6]) if (digits(low, count) !== digits(high, count)) return `${digits(low, count)} to ${digits(high, count)}`;
  return "";
}
const several = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
const micro = value => `${digits(value)} ${data.unit}`;

// Convert a row of numbers to a trial with named fields.
function trialOf(row) {
  const trial = {};
  data.columns.forEach((name, place) => { trial[name] = row[place]; });
  trial.measured = data.marks[data.mark_of[trial.outcome]][0] === "measured";
  mark(trial);
  return trial;
}
// A verification may refute a trial after its row was sent.
const refuted = trial => trial.number in data.refuted;
function mark(trial) {
  trial.kind = !trial.measured ? data.mark_of[trial.outcome] : refuted(trial) ? 2 : trial.control ? 1 : data.mark_of[trial.outcome];
  trial.lane = data.marks[trial.kind][2];
  trial.time = trial.lane ? null : trial.us;
}
let trials = [], byNumber = new Map(), fastest = null, scale = null, elites = new Map();

// Values that depend on all trials: positions within the sampler's or control's trials, and the time axis.
function digest() {
  trials.sort((a, b) => a.number - b.number);
  byNumber = new Map(trials.map(trial => [trial.number, trial]));
  trials.forEach(mark);
  const counted = [0, 0];
  for (const trial of trials) trial.evaluated = (counted[trial.control] += trial.counts);
  const timed = trials.filter(trial => trial.measured && !refuted(trial)).sort((a, b) => a.us - b.us || a.number - b.number);
  timed.forEach((trial, place) => { trial.rank = place; });
  elites = new Map();
  for (const gene of data.choices) {
    const seen = new Set();
    for (const trial of timed) {
      if (seen.has(trial.genes[gene]) || trial.genes[gene] < 0) continue;
      seen.add(trial.genes[gene]);
      elites.set(trial, [...elites.get(trial) || [], `${data.genes[gene].name}=${valueOf(trial, gene)}`]);
    }
  }
  fastest = byNumber.get(data.champion) || timed[0] || null;
  const least = timed.length ? timed[0].us : data.baseline ? data.baseline[1] : 1;
  // Limit the axis to the baseline and the first trial, so that much slower trials do not compress it.
  const first = trials.find(trial => trial.measured), wanted = 1.1 * Math.max(first ? first.us : least, data.baseline ? data.baseline[1] : least);
  const low = Math.min(least, data.baseline ? data.baseline[1] : least), most = Math.min(Math.max(wanted, 1.5 * low), 6 * low), room = Math.pow(most / low, 0.06);
  scale = { low: low / room, high: most * room };
}
function addRows(rows) {
  for (const row of rows) {
    const trial = trialOf(row), known = byNumber.get(trial.number);
    if (known) Object.assign(known, trial); else { trials.push(trial); byNumber.set(trial.number, trial); }
  }
  digest();
}
const baselineName = () => /baseline/i.test(data.baseline[0]) ? data.baseline[0] : `baseline ${data.baseline[0]}`;
const timeOf = trial => trial.number === data.champion ? data.champion_us : trial.us;
const text = place => place < 0 ? "" : data.texts[place];
const valueOf = (trial, gene) => trial.genes[gene] < 0 ? "?" : data.genes[gene].values[trial.genes[gene]];
const outcomeOf = trial => data.outcomes[trial.outcome] + (trial.unchecked ? ", not checked" : "") + (refuted(trial) ? ", refuted" : "");
const reasonOf = trial => refuted(trial) ? data.refuted[trial.number] : text(trial.reason);
function spoken(trial) {
  const time = trial.measured ? `, ${micro(timeOf(trial))}` : trial.reason >= 0 ? `: ${text(trial.reason).slice(0, 90)}` : "";
  return `trial ${trial.number}, ${outcomeOf(trial)}${trial.control ? ", proposed by the control" : ""}${time}`;
}

// Boxes that need scrolling are keyboard stops; boxes that fit are not. Boxes out of sight have no layout and report no
// resize. Check all boxes initially, when a section is expanded, and when the width changes (such as next to a card).
function stop(box) {
  const hidden = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
  if (!hidden && box === document.activeElement) return;  // keep the focus
  for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "scrolls"]])
    hidden ? box.setAttribute(name, value) : box.removeAttribute(name);
}
const stopsIn = part => part.querySelectorAll(".wide").forEach(stop);
const stops = new ResizeObserver(seen => seen.forEach(({ target }) => stop(target)));
document.querySelectorAll(".wide").forEach(box => stops.observe(box));
addEventListener("toggle", event => stopsIn(event.target), true);
let width = 0, asking;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width === width) return;
  width = contentRect.width;
  clearTimeout(asking);
  asking = setTimeout(() => stopsIn(document), 150);  // after handling the click that caused the change
}).observe(document.querySelector("details.section") || document.body);
