// The card of one trial: its outcome, reason, genes, and differences from the champion.
const card = document.getElementById("card");
let openedBy = null;

function showCard(opener) {
  const trial = byNumber.get(state.trial);
  if (!trial) { hideCard(); return; }
  if (opener) openedBy = opener;
  const fresh = card.hidden, stopped = cardStops().indexOf(document.activeElement);
  const unfolded = [...card.querySelectorAll("details")].map(one => one.open), told = Number(card.dataset.trial) === trial.number;
  const at = opener && opener.getBoundingClientRect().top;
  card.hidden = false;
  document.body.classList.add("with-card");
  // Opening the card changes the layout; keep the clicked element in place.
  if (opener && fresh) scrollBy({ top: opener.getBoundingClientRect().top - at, behavior: "instant" });
  card.replaceChildren(
    element("div", { class: "card-head" }, element("h2", { id: "card-title", tabindex: "-1" }, `Trial ${trial.number}: ${outcomeOf(trial)}`),
      element("button", { type: "button", class: "close", "aria-label": "Close the card", onclick: () => select(null) }, "×")),
    ...facts(trial), genesOf(trial), ...samplesOf(trial), ...differenceOf(trial),
    element("p", { class: "steps" },
      element("button", { type: "button", disabled: !neighbour(trial, -1), onclick: () => select(neighbour(trial, -1).number) }, "Faster"),
      element("button", { type: "button", disabled: !neighbour(trial, 1), onclick: () => select(neighbour(trial, 1).number) }, "Slower")));
  for (const box of card.querySelectorAll(".wide")) stops.observe(box);
  card.dataset.trial = trial.number;
  if (fresh || opener) document.getElementById("card-title").focus({ preventScroll: true });
  else if (stopped >= 0) (cardStops()[stopped] || document.getElementById("card-title")).focus({ preventScroll: true });
  if (told) [...card.querySelectorAll("details")].forEach((one, place) => { one.open = unfolded[place] ?? one.open; });
  if (data.live && !details.has(trial.number)) askFor(trial.number);
}
// Focusable elements of the card; its content is rebuilt when more details of the trial arrive.
const cardStops = () => [...card.querySelectorAll("h2, button, summary")];
function hideCard() {
  const was = !card.hidden;
  card.hidden = true;
  document.body.classList.remove("with-card");
  if (was && openedBy && openedBy.isConnected) openedBy.focus({ preventScroll: true });
  openedBy = null;
}
const neighbour = (trial, step) => trial.rank === undefined ? null : trials.find(one => one.rank === trial.rank + step) || null;

function facts(trial) {
  const rows = [], add = (name, value) => { if (value) rows.push(element("dt", {}, name), element("dd", {}, value)); };
  if (trial.measured) {
    const us = timeOf(trial);
    const between = trial.low !== null && !data.predicted && us === trial.us ? apart(trial.low, trial.high) : "";
    add("time", `${micro(us)}${between && ` [95 % interval ${between}]`}${us === trial.us ? "" : " (playoff)"}`);
    const parts = [];
    if (data.baseline) parts.push(`${(data.baseline[1] / us).toFixed(2)}× as fast as ${data.baseline[0]}`);
    if (fastest && fastest !== trial) parts.push(`${digits(us / timeOf(fastest), us < 1.1 * timeOf(fastest) ? 4 : 3)}× the champion's time`);
    if (fastest === trial) parts.push("the champion");
    add("speed", parts.join("; "));
  }
  if (trial.reason >= 0) add("reason", (details.get(trial.number) || {}).reason || text(trial.reason));
  if (trial.constraint >= 0) {
    const same = trials.filter(one => one.constraint === trial.constraint), name = text(trial.constraint);
    rows.push(element("dt", {}, "constraint or check"), element("dd", {}, name, " ", element("button", { type: "button", class: "link", onclick: () => { change({ constraint: name }); unfold("trials"); } }, `show ${several(same.length, "trial")}`)));
  }
  if (refuted(trial)) add("refuted", data.refuted[trial.number]);
  add("elite", elites.has(trial) && `the fastest with ${elites.get(trial).join(", ")}`);
  const used = [];
  if (trial.registers !== null) used.push(`${trial.registers} registers per thread`);
  if (trial.spill) used.push(`${trial.spill} bytes spilled`);
  if (trial.shared !== null) used.push(`${round(trial.shared / 1024)} KiB of shared memory per block`);
  if (trial.occupancy !== null) used.push(`occupancy ${trial.occupancy} %`);
  add("resources", used.join(", "));
  add("proposed by", trial.control ? `${data.control} (control)` : data.sampler);
  add("when", `after ${round(trial.seconds / 60)} min; compile ${round(trial.compile_s)} s, ${data.predicted ? "simulated" : "on the GPU"} for ${round(trial.device_s)} s`);
  return [element("dl", {}, ...rows)];
}
function genesOf(trial) {
  if (!fastest) return element("p", { class: "missing" }, "There is no champion to compare its genes with.");
  const different = differing(trial), rows = different.map(gene => element("tr", {}, element("th", { scope: "row", title: data.genes[gene].doc }, data.genes[gene].name),
    element("td", {}, element("mark", {}, valueOf(trial, gene))), element("td", {}, valueOf(fastest, gene))));
  const every = element("details", {}, element("summary", {}, `${several(data.genes.length - different.length, "gene")} with the champion's value`),
    element("p", {}, data.genes.map((gene, place) => [gene, place]).filter(([, place]) => !different.includes(place)).map(([gene, place]) => `${gene.name}=${valueOf(trial, place)}`).join(" ")));
  const holder = element("section", { "aria-label": "Genes" }, element("h3", {}, trial === fastest ? "Genes: this is the champion" : `Genes: ${different.length} differ from the champion's`));
  if (rows.length) holder.append(element("table", {}, element("thead", {}, element("tr", {}, ...["gene", `trial ${trial.number}`, `champion, ${fastest.number}`].map(name => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows)));
  holder.append(every);
  return holder;
}
function samplesOf(trial) {
  const kept = (details.get(trial.number) || {}).samples || data.samples[trial.number];
  if (!kept || kept[0] < 2) return trial.measured && !data.predicted ? [element("p", { class: "note" }, data.live || kept ? "This trial has no further samples." : "This file contains samples only for the fastest trials; use --serve to see all.")] : [];
  const [count, median, deviations] = kept, low = Math.min(...deviations, 0), high = Math.max(...deviations, 0), width = 340, span = high - low || 1;
  const at = value => 10 + (width - 20) * (value - low) / span;
  const svg = shape("svg", { viewBox: `0 0 ${width} 54`, role: "img", "aria-label": `Samples from ${digits(low / 100 || 0, 2)} to ${digits(high / 100, 2)} % of their median` });
  svg.append(shape("line", { class: "axis", x1: at(0), x2: at(0), y1: 4, y2: 34 }));
  svg.append(shape("path", { class: "mark measured", d: deviations.map((value, place) => `M${at(value).toFixed(1)} ${(9 + 20 * ((place * 0.618) % 1)).toFixed(1)}h0`).join("") }));
  const near = low / 100, far = high / 100;
  svg.append(shape("text", { x: 4, y: 50 }, `${near.toFixed(2)} %`), shape("text", { x: width - 4, y: 50, "text-anchor": "end" }, `+${far.toFixed(2)} %`));
  const shown = deviations.length < count ? ` (${deviations.length} shown)` : "";
  return [element("section", { "aria-label": "Samples" }, element("h3", {}, `${several(count, "sample")}${shown} relative to their median of ${digits(median)} µs`), svg)];
}
function differenceOf(trial) {
  if (trial === fastest || !fastest) return [];
  const asked = details.get(trial.number) || {}, lines = data.live ? asked.champion === data.champion && asked.difference : data.differences[trial.number];
  if (!lines) return data.source ? [element("p", { class: "note" }, data.live ? "Computing the source difference." : "This file contains source differences only for the 50 fastest trials and the elites; use --serve to see all.")] : [];
  const shown = lines.map(([mark, words]) => element("span", { class: { "-": "taken", "+": "given", "@": "place" }[mark] }, mark === "@" ? `${words}\n` : `${mark} ${words}\n`));
  return [element("section", { "aria-label": "Difference of the source" }, element("h3", {}, "Source: − champion, + this trial"),
    lines.length ? element("pre", { class: "difference wide" }, ...shown) : element("p", {}, "No line differs."))];
}
document.addEventListener("keydown", event => { if (event.key === "Escape" && !card.hidden) { select(null); event.preventDefault(); } });
