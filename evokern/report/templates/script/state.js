// Selection, filters and sort order: one state, shown by all views and stored in the page's address.
const state = { trial: null, sort: "us", down: false, outcome: "", gene: "", value: "", constraint: "", against: "" };
const REFUTED = "refuted";  // an extra outcome of the filter: refuted later by a verification
const FILTERS = ["outcome", "gene", "value", "constraint"];
const views = [];  // each has draw() for new data or a change that it follows(), and pick() for another selected trial

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const plain = location.hash && !location.hash.includes("=");
  state.trial = given.has("trial") && byNumber.has(Number(given.get("trial"))) ? Number(given.get("trial")) : null;
  const sort = given.get("sort") || "us";
  state.down = sort.startsWith("-");
  state.sort = sort.replace(/^-/, "");
  for (const name of [...FILTERS, "against"]) state[name] = given.get(name) || "";
  if (plain) unfold(decodeURIComponent(location.hash.slice(1)));
  if (given.has("at")) unfold(given.get("at"));
}
function writeAddress() {
  const kept = new URLSearchParams();
  if (state.trial !== null) kept.set("trial", state.trial);
  if (state.sort !== "us" || state.down) kept.set("sort", (state.down ? "-" : "") + state.sort);
  for (const name of [...FILTERS, "against"]) if (state[name]) kept.set(name, state[name]);
  const hash = kept.toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}
function unfold(id) {
  const found = document.getElementById(id), section = found && found.closest("details");
  if (!section) return;
  section.open = true;
  found.scrollIntoView();
  // Until now, sections out of sight had an estimated height and undrawn plots had none.
  if (found !== section) requestAnimationFrame(() => found.scrollIntoView());
}
function select(number, opener = null) {
  if (number !== null && !byNumber.has(number)) return;
  state.trial = number;
  writeAddress();
  views.forEach(view => view.pick());
  showCard(opener);
}
function change(changes, asked = null) {
  Object.assign(state, changes);
  writeAddress();
  draw(views.filter(view => Object.keys(changes).some(name => view.follows(name))), asked);
}
// Redraw visible views and the source of the change at once, and the rest afterwards, one per frame.
const waiting = new Set();
function draw(some, asked) {
  const began = waiting.size > 0;
  for (const view of some) {
    const box = view.holder.getBoundingClientRect();
    if (view === asked || box.bottom > 0 && box.top < innerHeight) { waiting.delete(view); view.draw(); } else waiting.add(view);
  }
  if (!began && waiting.size) painted(drawNext);
}
const painted = next => requestAnimationFrame(() => setTimeout(next));
function drawNext() {
  const [view] = waiting;
  if (!view) return;
  waiting.delete(view);
  view.draw();
  painted(drawNext);
}
const filtered = () => Boolean(state.outcome || state.constraint || (state.gene && state.value));
function passes(trial) {
  if (state.outcome && data.outcomes[trial.outcome] !== state.outcome && !(state.outcome === REFUTED && refuted(trial))) return false;
  if (state.constraint && text(trial.constraint) !== state.constraint) return false;
  if (state.gene && state.value) {
    const gene = data.genes.findIndex(one => one.name === state.gene);
    if (gene >= 0 && valueOf(trial, gene) !== state.value) return false;
  }
  return true;
}
