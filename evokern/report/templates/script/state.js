// What is selected, filtered and sorted: one state, which every view shows and the page's address keeps.
const state = { trial: null, sort: "us", down: false, outcome: "", gene: "", value: "", constraint: "", against: "" };
const REFUTED = "refuted";  // an outcome of the filter beside those of the trials: a verification found it later
const FILTERS = ["outcome", "gene", "value", "constraint"];
const views = [];  // each has draw(), for new data or another state that it follows(), and pick(), for another trial

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
  // What stood out of sight had a guessed height until now, what had to be drawn none.
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
// What is in sight, and the view that was asked, answers at once; the rest is drawn after that was painted, one a frame.
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
