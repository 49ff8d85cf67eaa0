// Live updates during a search: new trials every second, and cards and tables whenever the server has rebuilt them.
const details = new Map();  // trial -> details from the server: full reason, samples, source difference
const told = document.getElementById("status");
let shown = data.live ? data.live.version : 0, since = data.live ? data.live.since : 0, silent = 0;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}
async function askFor(number) {
  details.set(number, {});
  try {
    details.set(number, await (await ask(`trial?number=${number}`)).json());
    if (state.trial === number) showCard(null);
  } catch { details.delete(number); }
}
async function follow() {
  let again = data.live.every;
  try {
    const news = await (await ask(`news?since=${since}&texts=${data.texts.length}`)).json();
    silent = 0;
    if (news.study !== data.live.study) { location.reload(); return; }  // started over under the same name
    since = news.since;
    data.texts.push(...news.texts);
    const other = news.champion !== data.champion || Object.keys(news.refuted).length !== Object.keys(data.refuted).length;
    if (news.rows.length || other) {
      if (other) details.clear();  // differences depend on the champion
      data.refuted = news.refuted;
      data.champion = news.champion;
      data.champion_us = news.champion_us;
      data.baseline = news.baseline;
      addRows(news.rows);
      for (const view of views) view.draw();
      if (state.trial !== null) showCard(null);
    }
    if (told.textContent !== news.status) told.textContent = news.status;
    if (news.version !== shown) { shown = news.version; await parts(); }
    if (news.ended) again = 10 * data.live.every;
  } catch {
    silent += 1;
    if (silent > 2) { told.textContent = "The server has stopped; this page shows its last state."; return; }
  }
  setTimeout(follow, again);
}
// Replace the parts rendered by the server (cards, tables); keep those drawn by the script.
async function parts() {
  const page = new DOMParser().parseFromString(await (await ask("parts")).text(), "text/html");
  for (const fresh of page.querySelectorAll("[data-part]")) {
    const here = document.getElementById(fresh.id);
    if (!here || here.contains(document.activeElement)) continue;
    const open = [...here.querySelectorAll("details")].map(one => one.open);
    here.replaceChildren(...fresh.childNodes);
    here.className = fresh.className;
    [...here.querySelectorAll("details")].forEach((one, place) => { one.open = open[place] ?? one.open; });
    for (const box of here.querySelectorAll(".wide")) stops.observe(box);
  }
}
