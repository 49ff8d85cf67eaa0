// Table of all trials: sortable, filtered and paged; trials with indistinguishable times are grouped.
const PAGE = 50, TIED = 1.001, SHOWN_TIED = 3;

const COLUMNS = [
  ["number", "trial", trial => trial.number],
  ["outcome", "outcome", trial => outcomeOf(trial)],
  ["us", "", trial => trial.measured ? timeOf(trial) : null],
  ["speedup", "speedup", trial => trial.measured && data.baseline ? data.baseline[1] / timeOf(trial) : null],
  ["registers", "registers", trial => trial.registers],
  ["shared", "shared, KiB", trial => trial.shared === null ? null : trial.shared / 1024],
  ["occupancy", "occupancy, %", trial => trial.occupancy],
  ["choices", "differs from the champion in", trial => differing(trial).length],
  ["reason", "reason", reasonOf],
];
function differing(trial) {
  if (!fastest) return [];
  return data.genes.map((_, gene) => gene).filter(gene => trial.genes[gene] !== fastest.genes[gene]);
}
const cells = {
  us: trial => trial.measured ? digits(timeOf(trial), 4) : "–",
  speedup: trial => trial.measured && data.baseline ? `${(data.baseline[1] / timeOf(trial)).toFixed(2)}×` : "–",
  registers: trial => trial.registers ?? "–",
  shared: trial => trial.shared === null ? "–" : round(trial.shared / 1024),
  occupancy: trial => trial.occupancy ?? "–",
  outcome: trial => outcomeOf(trial) + (trial.control ? " (control)" : ""),
  reason: trial => reasonOf(trial).length > 140 ? `${reasonOf(trial).slice(0, 139)}…` : reasonOf(trial),
  choices: trial => {
    if (trial === fastest) return "this is the champion";
    const found = differing(trial), shown = found.slice(0, 5).map(gene => `${data.genes[gene].name}=${valueOf(trial, gene)}`);
    return (shown.join(" ") || "nothing") + (found.length > 5 ? ` and ${found.length - 5} more` : "");
  },
};

// Show only trials that pass these filters, and focus the filter.
function showTrials(filters) {
  change({ outcome: "", gene: "", value: "", constraint: "", ...filters });
  const table = views.find(view => view instanceof Table);
  document.getElementById("trials").open = true;
  if (table) table.draw();
  unfold("trials");
  if (table) table.value.focus({ preventScroll: true });
}

class Table {
  constructor(holder) {
    this.holder = holder;
    this.more = PAGE;
    this.opened = new Set();
    const choose = (name, words, changed) => {
      const made = element("select", { id: `filter-${name}`, onchange: () => { this.more = PAGE; changed(made.value); } });
      return [made, element("span", { class: "field" }, element("label", { for: `filter-${name}` }, words), made)];
    };
    let fields;
    [this.outcome, ...fields] = choose("outcome", "outcome", value => change({ outcome: value }, this));
    const gene = choose("gene", "gene", value => change({ gene: value, value: "" }, this)), value = choose("value", "is", given => change({ value: given }, this));
    const constraint = choose("constraint", "constraint or check", given => change({ constraint: given }, this));
    [this.gene] = gene; [this.value] = value; [this.constraint] = constraint;
    this.count = element("p", { role: "status" });
    this.head = element("tr");
    this.body = element("tbody", { onclick: event => this.click(event) });
    this.next = element("button", { type: "button", onclick: () => { this.more += PAGE; this.draw(); } });
    holder.replaceChildren(
      element("div", { class: "filters", role: "group", "aria-label": "Filters" }, ...fields, gene[1], value[1], constraint[1],
        element("button", { type: "button", onclick: () => change({ outcome: "", gene: "", value: "", constraint: "" }, this) }, "All"), this.asked()),
      this.count, element("div", { class: "wide" }, element("table", { class: "trials" }, element("thead", {}, this.head), this.body)), this.next);
    for (const box of holder.querySelectorAll(".wide")) stops.observe(box);
    this.seen = new IntersectionObserver(entries => { if (entries.some(one => one.isIntersecting) && this.stale) this.draw(); });
    this.seen.observe(holder);
  }
  follows(name) { return name !== "against"; }
  // A field that opens the card of a trial by its number.
  asked() {
    const number = element("input", { id: "open-trial", type: "number", min: 0, onchange: () => {
      const found = byNumber.has(Number(number.value)) && number.value !== "";
      number.setCustomValidity(found || number.value === "" ? "" : `There is no trial ${number.value}.`);
      if (found) select(Number(number.value), number); else number.reportValidity();
    } });
    return element("span", { class: "field" }, element("label", { for: "open-trial" }, "open trial"), number);
  }
  options(select, words, list, value) {
    const wanted = [["", words], ...list];
    if (value && !wanted.some(one => one[0] === value)) wanted.push([value, value]);
    select.replaceChildren(...wanted.map(([given, name]) => element("option", { value: given }, name)));
    select.value = value;
  }
  draw() {
    // A collapsed table is filled when it is expanded.
    this.stale = !this.holder.offsetParent;
    if (this.stale) return;
    const outcomes = new Map(), constraints = new Map();
    for (const trial of trials) {
      outcomes.set(data.outcomes[trial.outcome], (outcomes.get(data.outcomes[trial.outcome]) || 0) + 1);
      if (refuted(trial)) outcomes.set(REFUTED, (outcomes.get(REFUTED) || 0) + 1);
      if (trial.constraint >= 0) constraints.set(text(trial.constraint), (constraints.get(text(trial.constraint)) || 0) + 1);
    }
    // Hide columns without any data; a recording, for example, has no resources.
    this.columns = COLUMNS.filter(([name, , by]) => !["speedup", "registers", "shared", "occupancy", "reason"].includes(name) || trials.some(trial => { const value = by(trial); return value !== null && value !== ""; }));
    const counted = found => [...found].sort((a, b) => b[1] - a[1]).map(([name, count]) => [name, `${name} (${count})`]);
    this.options(this.outcome, "any", counted(outcomes), state.outcome);
    this.options(this.constraint, "any", counted(constraints), state.constraint);
    this.options(this.gene, "any", data.genes.map(gene => [gene.name, gene.name]), state.gene);
    const gene = data.genes.find(one => one.name === state.gene);
    this.options(this.value, "any value", gene ? gene.values.map(value => [value, value]) : [], state.value);
    this.value.disabled = !gene;
    this.head.replaceChildren(...this.columns.map(([name, words]) => {
      const sorted = state.sort === name ? (state.down ? "descending" : "ascending") : null;
      const button = element("button", { type: "button", "data-sort": name, onclick: () => {
        change({ sort: name, down: state.sort === name && !state.down }, this);
        this.head.querySelector(`[data-sort=${name}]`).focus();
      } }, `${words || data.unit}${sorted ? (state.down ? " ▼" : " ▲") : ""}`);
      return element("th", { scope: "col", "aria-sort": sorted, class: "registers shared occupancy us speedup number".includes(name) ? "n" : null }, button);
    }));
    const by = (COLUMNS.find(one => one[0] === state.sort) || COLUMNS[2])[2], sign = state.down ? -1 : 1;
    const keyed = trials.filter(passes).map(trial => [by(trial), trial]);
    const none = value => value === null || value === undefined || value === "";
    keyed.sort(([a, one], [b, two]) => none(a) - none(b) || (none(a) ? 0 : a < b ? -sign : a > b ? sign : 0) || one.number - two.number);
    this.sorted = keyed.map(one => one[1]);
    this.count.textContent = `${this.sorted.length.toLocaleString("en")} of ${several(trials.length, "trial")}${filtered() ? " match the filters; plots show the others faintly" : ""}`;
    this.rows();
  }
  rows() {
    const made = [];
    let place = 0;
    while (place < this.sorted.length && made.length < this.more) {
      const first = this.sorted[place];
      let end = place + 1;
      if (state.sort === "us" && first.measured)
        while (end < this.sorted.length && this.sorted[end].measured && Math.max(timeOf(this.sorted[end]), timeOf(first)) <= Math.min(timeOf(this.sorted[end]), timeOf(first)) * TIED) end++;
      const open = this.opened.has(first.number), group = end - place > SHOWN_TIED + 1 && !open ? SHOWN_TIED : end - place;
      for (let at = place; at < place + group && made.length < this.more; at++) made.push(this.row(this.sorted[at]));
      if (group < end - place && made.length < this.more) {
        const words = `${several(end - place - group, "more trial")} within 0.1 % of ${micro(timeOf(first))}`;
        made.push(element("tr", {}, element("td", { colspan: this.columns.length }, element("button", { type: "button", class: "link", "data-open": first.number }, words))));
      }
      place += Math.max(group, end - place);
    }
    this.body.replaceChildren(...made);
    this.next.hidden = made.length < this.more;
    this.next.textContent = `Show ${PAGE} more`;
  }
  row(trial) {
    return element("tr", { "data-trial": trial.number, "aria-selected": trial.number === state.trial ? "true" : null, class: trial.number === state.trial ? "picked" : null },
      ...this.columns.map(([name]) => name === "number"
        ? element("th", { scope: "row", class: "n" }, element("button", { type: "button", class: "link", "aria-label": `open trial ${trial.number}` }, String(trial.number)))
        : element("td", { class: "registers shared occupancy us speedup".includes(name) ? "n" : null }, String(cells[name](trial)))));
  }
  click(event) {
    const opener = event.target.closest("[data-open]"), row = event.target.closest("[data-trial]");
    if (opener) { this.opened.add(Number(opener.dataset.open)); this.rows(); }
    else if (row) select(Number(row.dataset.trial), row.querySelector("button"));
  }
  pick() {
    for (const row of this.body.querySelectorAll("[data-trial]")) {
      const picked = Number(row.dataset.trial) === state.trial;
      row.classList.toggle("picked", picked);
    }
  }
}
