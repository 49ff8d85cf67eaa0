// Theme switch, views, links, and start of the live updates.
const root = document.documentElement, button = document.getElementById("theme");
const wishes = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : wishes.matches;
const tell = () => button.setAttribute("aria-pressed", String(isDark()));
button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); });
wishes.addEventListener("change", tell);
tell();

const kinds = { convergence: holder => new Convergence(holder, false), time: holder => new Convergence(holder, true),
  parallel: holder => new Parallel(holder), against: holder => new Against(holder), table: holder => new Table(holder),
  roofline: holder => data.roofline ? new Roofline(holder) : null };
addRows(data.rows);
if (trials.length || data.live) {
  for (const holder of document.querySelectorAll("[data-view]")) {
    const view = kinds[holder.dataset.view](holder);
    if (view) views.push(view);
  }
}
readAddress();
views.forEach(view => view.draw());
if (state.trial !== null) showCard(null);
// A link to a trial opens its card, a link to a gene value lists its trials, and a link to a section expands it.
document.addEventListener("click", event => {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  const given = new URLSearchParams(link.getAttribute("href").slice(1));
  event.preventDefault();
  if (given.has("trial")) select(Number(given.get("trial")), link);
  else if (given.has("gene")) showTrials({ gene: given.get("gene"), value: given.get("value"), outcome: given.get("outcome") || "" });
  else if (given.has("against")) { change({ against: given.get("against") }); unfold("against"); }
  else unfold(link.getAttribute("href").slice(1));
});
addEventListener("hashchange", () => { readAddress(); views.forEach(view => { view.draw(); view.pick(); }); showCard(null); });
addEventListener("beforeprint", () => document.querySelectorAll("details.section").forEach(one => { one.open = true; }));
if (data.live) follow();
